#include "transport/mux/control_log.h"

#include <algorithm>

namespace geocomm::transport {

using core::Result;
using core::Status;

namespace {
constexpr std::size_t kMaxUnacknowledged = 1U << 20;
}  // namespace

bool ControlLog::push(WireHeader header) {
  std::lock_guard lock(mutex_);
  if (has_close_) return false;
  has_close_ = static_cast<PacketType>(header.type) == PacketType::Close;
  header.sequence = first_ + packets_.size();
  packets_.push_back(header);
  return true;
}

Status ControlLog::drop(std::uint64_t received) {
  if (received >= first_ + packets_.size()) {
    return core::corrupt("acknowledgement of control packet ", received,
                         ", which was never sent (the last one is ", first_ + packets_.size() - 1, ")");
  }
  if (received < first_) return Status::ok();
  const auto count = static_cast<std::size_t>(received - first_ + 1);
  packets_.erase(packets_.begin(), packets_.begin() + static_cast<std::ptrdiff_t>(count));
  first_ += count;
  unsent_ -= std::min(unsent_, count);
  return Status::ok();
}

// spec channel 5.1: "It MUST drop the numbered control packets"
Status ControlLog::restart(std::uint64_t received) {
  std::lock_guard lock(mutex_);
  if (received + 1 < first_) {
    return core::corrupt("the peer has forgotten control packets: it has ", received, ", after it had ",
                         first_ - 1);
  }
  GEOCOMM_RETURN_IF_ERROR(drop(received));
  unsent_ = 0;
  return Status::ok();
}

void ControlLog::take_unsent(std::vector<WireHeader>& out) {
  std::lock_guard lock(mutex_);
  out.insert(out.end(), packets_.begin() + static_cast<std::ptrdiff_t>(unsent_), packets_.end());
  unsent_ = packets_.size();
}

Status ControlLog::acknowledge(std::uint64_t received) {
  std::lock_guard lock(mutex_);
  return drop(received);
}

bool ControlLog::all_acknowledged() const {
  std::lock_guard lock(mutex_);
  return packets_.empty();
}

bool ControlLog::overflows() const {
  std::lock_guard lock(mutex_);
  return packets_.size() > kMaxUnacknowledged;
}

// spec channel 6.2: "The receiver MUST act on each once; a gap is an error."
Result<bool> ControlLog::receive(std::uint64_t number) {
  if (number == 0 || number > received_ + 1) {
    return core::corrupt("control packet ", number, " after packet ", received_);
  }
  if (number <= received_) return false;
  received_ = number;
  return true;
}

}  // namespace geocomm::transport
