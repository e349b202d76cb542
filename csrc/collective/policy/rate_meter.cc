#include "collective/policy/rate_meter.h"

namespace geocomm::collective {

void RateMeter::arrived(int rank, std::size_t bytes, bool begins, bool ends, Clock::time_point now) {
  std::lock_guard lock(mutex_);
  Peer& peer = peers_[rank];
  if (peer.under_way > 0) {
    peer.sum.bytes += bytes;
    peer.sum.seconds += std::chrono::duration<double>(now - peer.last).count();
  }
  if (begins) ++peer.under_way;
  if (ends) --peer.under_way;
  peer.last = now;
}

std::vector<PeerRate> RateMeter::take() {
  std::lock_guard lock(mutex_);
  std::vector<PeerRate> rates;
  for (auto& [rank, peer] : peers_) {
    if (peer.sum.seconds > 0.0) rates.push_back({rank, peer.sum.bytes, peer.sum.seconds});
    peer.sum = {};
  }
  return rates;
}

}  // namespace geocomm::collective
