// How many streams a link asks for, and when more of them are tried.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "transport/link/stream_plan.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr int kMost = static_cast<int>(kMaxDataStreams);

TEST(StreamPlan, test_streams_windows_cover_what_is_under_way) {
  // 1 Gbit/s and 100 ms: 12.5 MB under way.
  EXPECT_EQ(streams_for(125e6, 100ms, 2 * kMiB, 4), 6);
  EXPECT_EQ(streams_for(125e6, 300ms, 2 * kMiB, 4), 18);
  EXPECT_EQ(streams_for(125e6, 100ms, 64 * kMiB, 4), 4);
  EXPECT_EQ(streams_for(125e6, 0ms, 2 * kMiB, 16), 16);
}

TEST(StreamPlan, test_streams_no_stream_carries_more_than_3_gbit) {
  EXPECT_EQ(streams_for(12.5e9, 1ms, 64 * kMiB, 4), 34);
  EXPECT_EQ(streams_for(1.5e9, 0ms, 0, 4), 4);
  EXPECT_EQ(streams_for(1.51e9, 0ms, 0, 4), 5);
}

TEST(StreamPlan, test_streams_are_at_most_64) {
  EXPECT_EQ(streams_for(1e12, 1s, kMiB, 4), kMost);
  EXPECT_EQ(streams_for(1e300, std::chrono::hours(1), 1, 4), kMost);
}

TEST(StreamPlan, test_channels_of_one_path_share_its_streams) {
  EXPECT_EQ(streams_of_channel(16, 1), 16);
  EXPECT_EQ(streams_of_channel(16, 3), 6);
  EXPECT_EQ(streams_of_channel(2, 2), 1);
  EXPECT_EQ(streams_of_channel(2, 8), 1);
  EXPECT_EQ(streams_of_channel(2, 0), 2);
}

TEST(StreamPlan, test_window_is_half_of_the_smaller_buffer) {
  EXPECT_EQ(window_of(4 * kMiB, 6 * kMiB), 2 * kMiB);
  EXPECT_EQ(window_of(8 * kMiB, 6 * kMiB), 3 * kMiB);
  EXPECT_EQ(window_of(0, 6 * kMiB), 3 * kMiB);
  EXPECT_EQ(window_of(0, 0), 0U);
}

// A link that is busy all the time, on a clock of its own.
struct SimulatedLink {
  StreamTrial trial{};
  int streams = 4;
  std::chrono::microseconds rtt = 100ms;
  bool busy = true;
  bool limited = true;
  StreamTrial::Clock::time_point now{};

  // `rate_of` streams: bytes per second.
  void run(StreamTrial::Seconds time, const std::function<double(int)>& rate_of) {
    constexpr auto kStep = 5ms;
    for (auto left = time; left.count() > 0; left -= kStep) {
      now += kStep;
      const auto bytes = static_cast<std::uint64_t>(rate_of(streams) * 0.005);
      streams = trial.acknowledged(bytes, busy, limited, streams, rtt, now);
    }
  }
};

TEST(StreamTrial, test_streams_double_as_long_as_each_adds_its_share) {
  SimulatedLink link;
  link.run(60s, [](int streams) { return 1e6 * std::min(streams, 16); });
  EXPECT_EQ(link.streams, 32);  // the step from 16 to 32 gained nothing, and was the last
  EXPECT_EQ(link.trial.useful(), 16);
  link.run(600s, [](int streams) { return 1e6 * streams; });
  EXPECT_EQ(link.streams, 32);
}

TEST(StreamTrial, test_streams_stay_within_64) {
  SimulatedLink link;
  link.run(600s, [](int streams) { return 1e6 * streams; });
  EXPECT_EQ(link.streams, kMost);
  EXPECT_EQ(link.trial.useful(), kMost);
}

TEST(StreamTrial, test_full_link_gets_one_try_and_goes_back) {
  SimulatedLink link;
  link.run(4s, [](int) { return 1e8; });
  EXPECT_EQ(link.trial.useful(), 0);
  link.run(600s, [](int) { return 1e8; });
  EXPECT_EQ(link.streams, 8);
  EXPECT_EQ(link.trial.useful(), 4);
}

TEST(StreamTrial, test_link_that_buffers_do_not_limit_is_left_alone_for_a_minute) {
  SimulatedLink link{.limited = false};
  link.run(55s, [](int streams) { return 1e6 * streams; });
  EXPECT_EQ(link.streams, 4);
  link.run(60s, [](int streams) { return 1e6 * std::min(streams, 8); });
  EXPECT_EQ(link.trial.useful(), 8);
}

TEST(StreamTrial, test_idle_link_and_short_round_trips_get_none) {
  SimulatedLink idle{.busy = false};
  idle.run(600s, [](int streams) { return 1e6 * streams; });
  EXPECT_EQ(idle.streams, 4);
  SimulatedLink near{.rtt = 100us};
  near.run(600s, [](int streams) { return 1e6 * streams; });
  EXPECT_EQ(near.streams, 4);
}

TEST(StreamTrial, test_pauses_between_operations_do_not_count) {
  SimulatedLink link;
  for (int operation = 0; operation < 100; ++operation) {
    link.busy = true;
    link.run(500ms, [](int streams) { return 1e6 * std::min(streams, 8); });
    link.busy = false;
    link.run(5ms, [](int) { return 0; });
    link.now += 3s;
  }
  EXPECT_EQ(link.streams, 16);
}

TEST(StreamTrial, test_streams_that_never_connect_are_not_measured) {
  StreamTrial trial;
  StreamTrial::Clock::time_point now{};
  int wanted = 0;
  for (int i = 0; i < 100'000; ++i) {
    now += 5ms;
    wanted = std::max(wanted, trial.acknowledged(5'000, true, true, 4, 100ms, now));
  }
  EXPECT_EQ(wanted, 8);
}

TEST(StreamTrial, test_lost_streams_are_no_new_number) {
  SimulatedLink link;
  link.run(4s, [](int) { return 1e8; });
  ASSERT_EQ(link.streams, 8);
  for (int i = 0; i < 1000; ++i) {
    link.now += 5ms;
    EXPECT_EQ(link.trial.acknowledged(500'000, true, true, 7, link.rtt, link.now), 8);
  }
}

}  // namespace
}  // namespace geocomm::transport
