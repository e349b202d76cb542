// How far the peer's steady clock is from the own one, from the times of heartbeats (as NTP, RFC 5905 §8).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace geocomm::transport {

// When a heartbeat and its reply were sent and came, in ns: `sent` and `answered` on the own clock, the other
// two on the peer's.
struct HeartbeatTimes {
  std::uint64_t sent = 0;
  std::uint64_t came = 0;
  std::uint64_t replied = 0;
  std::uint64_t answered = 0;
};

// Each heartbeat bounds the offset: nothing arrives before it was sent, either way. What all of the last ones
// leave is the estimate. A bound loosens with age, since clocks drift apart.
class ClockOffset {
 public:
  struct Estimate {
    std::int64_t offset_ns = 0;  // the peer's clock less the own one
    std::int64_t error_ns = 0;   // the true offset is no farther from it
  };

  // Times that contradict themselves are left out. Those that contradict all before, as after a machine has
  // slept, are the first of a new estimate.
  void add(const HeartbeatTimes& times);
  // Nothing: no heartbeat was answered with the peer's clock.
  std::optional<Estimate> at(std::uint64_t now) const;

 private:
  struct Bound {
    std::uint64_t answered = 0;
    std::int64_t low = 0;
    std::int64_t high = 0;
  };

  static constexpr std::size_t kKept = 64;

  std::array<Bound, kKept> bounds_{};
  std::size_t count_ = 0;  // that were ever added since the estimate began
};

}  // namespace geocomm::transport
