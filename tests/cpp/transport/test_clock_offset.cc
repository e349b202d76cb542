// The offset of a peer's clock, from heartbeats whose delays and clocks are known here.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>

#include "transport/link/clock_offset.h"

namespace geocomm::transport {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kHour = 3'600'000 * kMs;

// A heartbeat at `sent`, to a peer whose clock is ahead by `offset` and goes 40 ppm too fast.
HeartbeatTimes heartbeat(std::uint64_t sent, std::int64_t offset, std::uint64_t there, std::uint64_t back) {
  const auto at_peer = [offset](std::uint64_t at) {
    return at + static_cast<std::uint64_t>(offset) + at / 25'000;
  };
  const std::uint64_t came = sent + there;
  const std::uint64_t replied = came + kMs / 10;
  return {.sent = sent, .came = at_peer(came), .replied = at_peer(replied), .answered = replied + back};
}

TEST(ClockOffset, BoundsHoldTheTruthWhileTheClocksDriftApart) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> queue(1.0 / 40);  // ms
  constexpr std::int64_t kOffset = -3'700 * static_cast<std::int64_t>(kMs);
  ClockOffset clock;
  std::uint64_t now = kHour;
  for (int i = 0; i < 500; ++i, now += 3'000 * kMs) {
    const auto delay = [&] { return 20 * kMs + static_cast<std::uint64_t>(queue(random) * kMs); };
    const HeartbeatTimes times = heartbeat(now, kOffset, delay(), delay());
    clock.add(times);
    const auto estimate = clock.at(times.answered);
    ASSERT_TRUE(estimate.has_value());
    const std::int64_t truth = kOffset + static_cast<std::int64_t>(times.answered / 25'000);
    EXPECT_LE(std::abs(estimate->offset_ns - truth), estimate->error_ns + 10'000);
    if (i > 64) {
      EXPECT_LE(estimate->error_ns, 32 * static_cast<std::int64_t>(kMs));  // 20 ms each way, and drift
    }
  }
}

TEST(ClockOffset, WithoutAnAnswerIsUnknownAndLoosensWithAge) {
  ClockOffset clock;
  EXPECT_FALSE(clock.at(kHour).has_value());
  clock.add({.sent = kHour, .came = 0, .replied = 0, .answered = kHour + kMs});  // a peer that tells no time
  EXPECT_FALSE(clock.at(kHour).has_value());
  const HeartbeatTimes times = heartbeat(kHour, 0, 10 * kMs, 10 * kMs);
  clock.add(times);
  const auto fresh = clock.at(times.answered);
  const auto old = clock.at(times.answered + kHour);
  ASSERT_TRUE(fresh && old);
  EXPECT_EQ(old->error_ns - fresh->error_ns, static_cast<std::int64_t>(kHour / 10'000));
}

TEST(ClockOffset, OfAMachineThatHasSleptBeginsAnew) {
  ClockOffset clock;
  for (std::uint64_t i = 0; i < 10; ++i) clock.add(heartbeat(kHour + i * kMs, 0, kMs, kMs));
  constexpr std::int64_t kSlept = 60'000 * static_cast<std::int64_t>(kMs);
  const HeartbeatTimes times = heartbeat(kHour + 20 * kMs, kSlept, kMs, kMs);
  clock.add(times);
  const auto estimate = clock.at(times.answered);
  ASSERT_TRUE(estimate.has_value());
  EXPECT_NEAR(static_cast<double>(estimate->offset_ns), static_cast<double>(kSlept + kHour / 25'000),
              2.0 * kMs);
}

TEST(ClockOffset, TimesThatCannotBeAreLeftOut) {
  ClockOffset clock;
  clock.add({.sent = 10, .came = 5, .replied = 4, .answered = 20});   // replied before it came
  clock.add({.sent = 20, .came = 5, .replied = 6, .answered = 10});   // answered before it was sent
  clock.add({.sent = 10, .came = 5, .replied = 50, .answered = 20});  // at the peer for longer than it took
  clock.add({.sent = 10, .came = ~0ULL, .replied = ~0ULL, .answered = 20});
  EXPECT_FALSE(clock.at(20).has_value());
}

}  // namespace
}  // namespace geocomm::transport
