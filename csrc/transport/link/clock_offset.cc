#include "transport/link/clock_offset.h"

#include <algorithm>
#include <limits>

namespace geocomm::transport {
namespace {

// Each of two clocks is off by up to 50 parts per million.
constexpr std::int64_t kDriftDivisor = 10'000;
// A clock of a machine that is up for 30 years has less; with that, no sum below leaves its range.
constexpr std::uint64_t kMostNs = std::uint64_t{1} << 60;

std::int64_t difference(std::uint64_t left, std::uint64_t right) {
  return static_cast<std::int64_t>(left) - static_cast<std::int64_t>(right);
}

}  // namespace

void ClockOffset::add(const HeartbeatTimes& times) {
  const auto& [sent, came, replied, answered] = times;
  if (std::max({sent, came, replied, answered}) > kMostNs || std::min(came, replied) == 0) return;
  if (answered < sent || replied < came) return;
  const Bound bound{
      .answered = answered, .low = difference(replied, answered), .high = difference(came, sent)};
  if (bound.low > bound.high) return;  // it was at the peer for longer than it took
  bounds_[count_++ % kKept] = bound;
  if (at(answered)) return;
  bounds_[0] = bound;
  count_ = 1;
}

std::optional<ClockOffset::Estimate> ClockOffset::at(std::uint64_t now) const {
  std::int64_t low = std::numeric_limits<std::int64_t>::min();
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < std::min(count_, kKept); ++i) {
    const std::int64_t drift =
        std::max<std::int64_t>(difference(now, bounds_[i].answered), 0) / kDriftDivisor;
    low = std::max(low, bounds_[i].low - drift);
    high = std::min(high, bounds_[i].high + drift);
  }
  if (count_ == 0 || low > high) return std::nullopt;
  return Estimate{.offset_ns = low + (high - low) / 2, .error_ns = (high - low + 1) / 2};
}

}  // namespace geocomm::transport
