#include "transport/link/link_health.h"

#include <algorithm>

#include "transport/link/heartbeat.h"

namespace geocomm::transport {

void LinkHealth::count(std::uint64_t received, std::uint64_t sent) {
  if (received > 0) {
    on_contact();
    last_byte_ns_.store(timers_.now_ns(), std::memory_order_relaxed);
  }
  bytes_received_.fetch_add(received, std::memory_order_relaxed);
  bytes_sent_.fetch_add(sent, std::memory_order_relaxed);
}

void LinkHealth::on_contact() {
  last_contact_ = timers_.now();
  silent_ticks_ = 0;
}

bool LinkHealth::is_silent_at_tick() {
  return ++silent_ticks_ > kSilentTicks;
}

bool LinkHealth::on_reply(std::uint64_t sent, std::uint64_t came, std::uint64_t replied) {
  const std::uint64_t now = timers_.now_ns();
  if (sent == 0 || sent >= now) return false;
  const std::uint64_t rtt = std::max<std::uint64_t>((now - sent) / 1000, 1);
  least_rtt_us_ = least_rtt_us_ == 0 ? rtt : std::min<std::uint64_t>(least_rtt_us_, rtt);
  rtt_us_ = rtt;
  std::lock_guard lock(clock_mutex_);
  peer_clock_.add({.sent = sent, .came = came, .replied = replied, .answered = now});
  return true;
}

void LinkHealth::add_stats(ChannelStats& stats) const {
  const std::uint64_t now = timers_.now_ns();
  stats.bytes_sent = bytes_sent_;
  stats.bytes_received = bytes_received_;
  stats.rtt_us = rtt_us_;
  stats.least_rtt_us = least_rtt_us_;
  if (const std::uint64_t last = last_byte_ns_; last != 0) {
    stats.silent_us = now > last ? (now - last) / 1000 : 0;
  }
  std::lock_guard lock(clock_mutex_);
  stats.clock = peer_clock_.at(now);
}

}  // namespace geocomm::transport
