// When a channel says that it is there, and when it takes the peer's silence for the loss of its connections.
#pragma once

#include <algorithm>
#include <chrono>

namespace geocomm::transport {

inline constexpr std::chrono::milliseconds kHeartbeatInterval{3000};
// Intervals without a byte from the peer after which its connections count as dead.
inline constexpr int kSilentTicks = 3;

// Shorter where the deadline is: half of it is left for new connections.
constexpr std::chrono::nanoseconds heartbeat_interval(std::chrono::nanoseconds link_deadline) {
  return std::min<std::chrono::nanoseconds>(kHeartbeatInterval, link_deadline / (2 * kSilentTicks));
}

}  // namespace geocomm::transport
