#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "emulator/wan_link.h"

namespace geocomm::emulator {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::size_t kHeader = 52, kMss = 1448;

// A frame of `segments` full segments of 1500 bytes each; a link looks at sizes alone.
Frame frame_of(std::size_t segments) {
  Frame frame;
  frame.ip_header_bytes = 20;
  frame.header_bytes = kHeader;
  frame.segment_payload_bytes = kMss;
  frame.payload_bytes = segments * kMss;
  frame.segments = segments;
  return frame;
}

const Clock::time_point kStart{std::chrono::seconds(1000)};

std::vector<SegmentRun> admit(Link& link, std::size_t segments, Clock::time_point now) {
  std::vector<SegmentRun> runs;
  link.admit(frame_of(segments), now, runs);
  return runs;
}

TEST(WanLink, AdmitOneSegmentIsDueAfterLineTimeAndDelay) {
  Link link({.rate_bps = 12e6, .delay = milliseconds(50)}, 1);
  const auto runs = admit(link, 1, kStart);
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].due, kStart + milliseconds(51));  // 1500 bytes take 1 ms
}

TEST(WanLink, AdmitBackToBackFramesQueueOnTheLine) {
  Link link({.rate_bps = 12e6}, 1);
  for (int i = 1; i <= 10; ++i) EXPECT_EQ(admit(link, 1, kStart).back().due, kStart + milliseconds(i));
  EXPECT_EQ(admit(link, 1, kStart + milliseconds(500)).back().due, kStart + milliseconds(501));
  EXPECT_EQ(link.counters().bytes, 11 * 1500U);
  EXPECT_EQ(link.counters().segments, 11U);
  EXPECT_EQ(link.counters().packets, 11U);
}

TEST(WanLink, AdmitSuperPacketOnSlowLinkIsHandedOverPiecemeal) {
  Link slow({.rate_bps = 12e6}, 1);
  const auto runs = admit(slow, 40, kStart);
  ASSERT_EQ(runs.size(), 20U);  // 2 ms each
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].first, 2 * i);
    EXPECT_EQ(runs[i].count, 2U);
    EXPECT_EQ(runs[i].due, kStart + milliseconds(2 * (i + 1)));
  }
  Link fast({.rate_bps = 12e9}, 1);
  EXPECT_EQ(admit(fast, 40, kStart).size(), 1U);
}

TEST(WanLink, AdmitBeyondTheQueueDropsTheTail) {
  Link link({.rate_bps = 12e6, .queue_limit_bytes = 15000}, 1);
  std::size_t let_in = 0;
  for (const SegmentRun& run : admit(link, 40, kStart)) let_in += run.count;
  EXPECT_EQ(let_in, 10U);
  EXPECT_EQ(link.counters().dropped_queue, 30U);
  EXPECT_EQ(link.counters().max_queue_bytes, 15000U);
  // 5 ms later five have left.
  let_in = 0;
  for (const SegmentRun& run : admit(link, 40, kStart + milliseconds(5))) let_in += run.count;
  EXPECT_EQ(let_in, 5U);
}

TEST(WanLink, AdmitWithLossDropsSegmentsNotFrames) {
  Link link({.rate_bps = 1e12, .loss = 0.1, .queue_limit_bytes = 1 << 30}, 7);
  std::size_t let_in = 0;
  constexpr std::size_t kFrames = 2000, kSegments = 40;
  for (std::size_t i = 0; i < kFrames; ++i) {
    std::size_t previous_end = 0;
    for (const SegmentRun& run : admit(link, kSegments, kStart + milliseconds(i))) {
      EXPECT_GE(run.first, previous_end);
      previous_end = run.first + run.count;
      EXPECT_LE(previous_end, kSegments);
      let_in += run.count;
    }
  }
  const LinkCounters& counters = link.counters();
  EXPECT_EQ(let_in + counters.dropped_loss, kFrames * kSegments);
  EXPECT_EQ(counters.segments, let_in);
  const double expected = 0.1 * kFrames * kSegments;
  EXPECT_NEAR(static_cast<double>(counters.dropped_loss), expected, 5 * std::sqrt(expected * 0.9));
}

TEST(WanLink, AdmitTotalLossLetsNothingIn) {
  Link link({.loss = 1}, 1);
  EXPECT_TRUE(admit(link, 40, kStart).empty());
  EXPECT_EQ(link.counters().bytes, 0U);
}

TEST(WanLink, AdmitWhileDownDropsAndCounts) {
  Link link({.up = false}, 1);
  EXPECT_TRUE(admit(link, 40, kStart).empty());
  EXPECT_EQ(link.counters().dropped_down, 40U);
  link.change({}, kStart);
  EXPECT_EQ(admit(link, 40, kStart).size(), 1U);
}

TEST(WanLink, AdmitReorderedSegmentsComeAloneAndWithinTheirLag) {
  Link link({.rate_bps = 1e9, .delay = milliseconds(20), .reorder = 0.5}, 3);
  const auto runs = admit(link, 40, kStart);
  std::vector<int> times_admitted(40);
  std::size_t overtaken = 0;
  Clock::time_point latest = kStart;
  for (const SegmentRun& run : runs) {
    for (std::size_t i = run.first; i < run.first + run.count; ++i) ++times_admitted[i];
    EXPECT_GE(run.due, kStart + milliseconds(20));
    EXPECT_LT(run.due, kStart + milliseconds(31));
    if (run.due < latest) ++overtaken;
    latest = std::max(latest, run.due);
  }
  EXPECT_EQ(times_admitted, std::vector<int>(40, 1));
  EXPECT_GT(link.counters().reordered, 8U);
  EXPECT_GT(overtaken, 4U);
  EXPECT_LT(admit(link, 1, kStart + milliseconds(500)).back().due, kStart + milliseconds(531));
}

TEST(WanLink, AdmitDuplicatedSegmentsComeTwice) {
  Link link({.rate_bps = 1e9, .duplicate = 0.5}, 3);
  std::vector<std::size_t> times_admitted(40);
  for (const SegmentRun& run : admit(link, 40, kStart)) {
    for (std::size_t i = run.first; i < run.first + run.count; ++i) ++times_admitted[i];
  }
  std::size_t twice = 0;
  for (const std::size_t times : times_admitted) {
    EXPECT_TRUE(times == 1 || times == 2) << times;
    twice += times - 1;
  }
  EXPECT_EQ(link.counters().duplicated, twice);
  EXPECT_GT(twice, 8U);
  EXPECT_LT(twice, 32U);
}

TEST(WanLink, AdmitResetsOnlyWhatCanBeReset) {
  Link link({.rate_bps = 1e9, .reset = 1}, 3);
  for (const SegmentRun& run : admit(link, 40, kStart)) EXPECT_FALSE(run.reset);
  Frame frame = frame_of(40);
  frame.resettable = true;
  std::vector<SegmentRun> runs;
  link.admit(frame, kStart, runs);
  ASSERT_EQ(runs.size(), 40U);
  for (const SegmentRun& run : runs) {
    EXPECT_TRUE(run.reset);
    EXPECT_EQ(run.count, 1U);
  }
  EXPECT_EQ(link.counters().resets, 40U);
}

TEST(WanLink, ChangeOfRateKeepsTheQueuedBytes) {
  Link link({.rate_bps = 12e6, .queue_limit_bytes = 150000}, 1);
  admit(link, 100, kStart);  // full: 100 ms at the old rate
  link.change({.rate_bps = 120e6, .queue_limit_bytes = 150000}, kStart);
  EXPECT_TRUE(admit(link, 1, kStart).empty());
  // 1 ms drains ten packets at the new rate.
  std::size_t let_in = 0;
  for (const SegmentRun& run : admit(link, 40, kStart + milliseconds(1))) let_in += run.count;
  EXPECT_EQ(let_in, 10U);
}

TEST(WanLink, ChangeToShorterDelayNeverReorders) {
  Link link({.rate_bps = 1e9, .delay = milliseconds(100)}, 1);
  const auto before = admit(link, 1, kStart).back().due;
  link.change({.rate_bps = 1e9, .delay = milliseconds(1)}, kStart);
  EXPECT_GE(admit(link, 1, kStart).back().due, before);
  EXPECT_LT(admit(link, 1, kStart + milliseconds(200)).back().due, kStart + milliseconds(202));
}

TEST(WanLink, QueueBytesFollowTheBandwidthDelayProduct) {
  EXPECT_EQ((LinkParams{.rate_bps = 1e9, .delay = milliseconds(50)}).queue_bytes(), 12'500'000U);
  EXPECT_EQ((LinkParams{.rate_bps = 1e6, .delay = milliseconds(50)}).queue_bytes(), 256 * 1024U);
  EXPECT_EQ((LinkParams{.queue_limit_bytes = 3000}).queue_bytes(), 3000U);
}

TEST(WanLink, ValidateImpossibleValuesAreRefused) {
  EXPECT_TRUE(LinkParams{}.validate().is_ok());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const LinkParams& params :
       {LinkParams{.rate_bps = 0}, LinkParams{.rate_bps = nan}, LinkParams{.rate_bps = 1e13},
        LinkParams{.delay = nanoseconds(-1)}, LinkParams{.delay = std::chrono::seconds(61)},
        LinkParams{.loss = -0.1}, LinkParams{.loss = 1.1}, LinkParams{.loss = nan},
        LinkParams{.reorder = 1.1}, LinkParams{.duplicate = nan}, LinkParams{.reset = -1}}) {
    EXPECT_EQ(params.validate().code(), core::StatusCode::InvalidArgument);
  }
}

}  // namespace
}  // namespace geocomm::emulator
