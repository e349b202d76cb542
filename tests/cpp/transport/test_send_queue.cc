// What is kept until it is acknowledged, what goes out again, and what an acknowledgement may say.
#include <gtest/gtest.h>

#include <algorithm>

#include "transport/mux/control_log.h"
#include "transport/mux/send_queue.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

constexpr Carrier kFirst{1, 1};
constexpr Carrier kSecond{2, 1};

class SendQueueTest : public ::testing::Test {
 protected:
  SendQueueTest() { queue_.set_peer_limit(std::uint64_t{1} << 40); }

  void push(std::uint64_t op, std::size_t bytes) {
    ASSERT_TRUE(
        queue_.push(chunk_of({1, op}, pattern(bytes, op)), [this](const Status& s) { results_.push_back(s); })
            .is_ok());
  }
  std::vector<OutSegment> pull(const Carrier& carrier, std::size_t most = 100) {
    std::vector<OutSegment> out;
    resent_ = queue_.pull(carrier, std::size_t{1} << 30, most, SendQueue::Clock::now(), out);
    return out;
  }
  void write(const std::vector<OutSegment>& segments) {
    for (const OutSegment& segment : segments) {
      if (const SentCallback callback = queue_.segment_sent(segment)) callback(Status::ok());
    }
  }
  // Everything below `low`, and the bits.
  Status acknowledge(std::uint64_t low, std::uint64_t base = 0, std::uint64_t bits = 0) {
    std::vector<SentCallback> callbacks;
    std::uint64_t bytes = 0;
    Status status = queue_.acknowledge({.low = low, .base = base, .bits = bits}, SendQueue::Clock::now(),
                                       callbacks, bytes);
    for (const SentCallback& callback : callbacks) callback(Status::ok());
    acked_bytes_ += bytes;
    return status;
  }
  static std::vector<std::uint64_t> numbers(const std::vector<OutSegment>& segments) {
    std::vector<std::uint64_t> all;
    for (const OutSegment& segment : segments) all.push_back(segment.number);
    return all;
  }
  using Numbers = std::vector<std::uint64_t>;

  ClosedGroups closed_;
  SendQueue queue_{closed_};
  std::vector<Status> results_;
  std::size_t resent_ = 0;
  std::uint64_t acked_bytes_ = 0;
};

TEST_F(SendQueueTest, test_lost_segments_go_out_again_first_and_in_order_of_their_numbers) {
  push(1, 3 * kMaxSegmentBytes);
  push(2, 100);
  const auto one = pull(kFirst, 1);
  const auto two = pull(kSecond, 1);
  const auto three = pull(kFirst, 1);
  EXPECT_EQ(numbers(one), Numbers{1});
  EXPECT_EQ(numbers(three), Numbers{3});
  queue_.lose(kFirst);
  EXPECT_TRUE(queue_.has_ready());
  const auto again = pull(kSecond);
  EXPECT_EQ(numbers(again), (Numbers{1, 3, 4}));
  EXPECT_EQ(resent_, 2U);
  EXPECT_EQ(again[0].offset, one[0].offset);
  EXPECT_EQ(again[0].chunk, one[0].chunk);
  // The newer connection carries them now: the loss of the older one is old news.
  queue_.lose(kFirst);
  EXPECT_FALSE(queue_.has_ready());
  queue_.lose(kSecond);
  EXPECT_EQ(numbers(pull(kFirst)), (Numbers{1, 2, 3, 4}));
}

TEST_F(SendQueueTest, test_chunk_is_kept_until_it_is_acknowledged) {
  push(1, 2000);
  write(pull(kFirst));
  EXPECT_EQ(results_.size(), 1U);  // on_sent is about writing
  EXPECT_FALSE(queue_.empty());
  ASSERT_TRUE(acknowledge(2).is_ok());
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(acked_bytes_, 2000U);
}

TEST_F(SendQueueTest, test_acknowledged_segments_do_not_go_out_again) {
  push(1, 4 * kMaxSegmentBytes);
  (void)pull(kFirst);
  ASSERT_TRUE(acknowledge(2, 0, std::uint64_t{1} << 3).is_ok());  // 1 and 3
  queue_.lose(kFirst);
  EXPECT_EQ(numbers(pull(kSecond)), (Numbers{2, 4}));
  queue_.lose(kSecond);
  ASSERT_TRUE(acknowledge(5).is_ok());
  EXPECT_FALSE(queue_.has_ready());
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(results_.size(), 1U);  // acknowledged is as good as written
}

TEST_F(SendQueueTest, test_acknowledgement_of_what_was_never_sent_is_corrupt) {
  push(1, 2 * kMaxSegmentBytes);
  (void)pull(kFirst, 1);
  EXPECT_EQ(acknowledge(3).code(), StatusCode::CorruptData);
  EXPECT_EQ(acknowledge(1, 0, std::uint64_t{1} << 2).code(), StatusCode::CorruptData);
  EXPECT_EQ(acknowledge(1, 64, 1).code(), StatusCode::CorruptData);
  EXPECT_EQ(acknowledge(~std::uint64_t{0}).code(), StatusCode::CorruptData);
  EXPECT_EQ(acked_bytes_, 0U);
  EXPECT_TRUE(acknowledge(1, 0, std::uint64_t{1} << 1).is_ok());
  EXPECT_TRUE(acknowledge(2).is_ok());  // an old one
}

TEST_F(SendQueueTest, test_numbered_segment_of_a_cancelled_operation_still_goes_out) {
  push(1, 3 * kMaxSegmentBytes);
  (void)pull(kFirst, 1);
  for (const SentCallback& callback : queue_.cancel({1, 1})) callback({StatusCode::Aborted, "cancelled"});
  ASSERT_EQ(results_.size(), 1U);
  EXPECT_TRUE(pull(kFirst).empty());  // those without a number are gone
  EXPECT_FALSE(queue_.empty());
  queue_.lose(kFirst);
  EXPECT_EQ(numbers(pull(kSecond)), Numbers{1});
  ASSERT_TRUE(acknowledge(2).is_ok());
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(results_.size(), 1U);
}

TEST_F(SendQueueTest, test_slow_segments_go_out_once_more_over_another_stream_within_the_budget) {
  const auto later = [](std::chrono::milliseconds time) { return SendQueue::Clock::now() + time; };
  for (std::uint64_t op = 10; op < 60; ++op) push(op, 2 * kMaxSegmentBytes);
  (void)pull(kSecond, 99);
  ASSERT_TRUE(acknowledge(100).is_ok());
  std::vector<OutSegment> out;
  EXPECT_FALSE(queue_.has_slow(later(10s)));  // not while there is something else to send
  (void)pull(kFirst, 1);
  push(2, 3 * kMaxSegmentBytes);
  (void)pull(kFirst);
  EXPECT_FALSE(queue_.has_slow(later(-1s)));
  EXPECT_TRUE(queue_.slow_after().has_value());
  EXPECT_TRUE(queue_.has_slow(later(900ms)));
  EXPECT_FALSE(queue_.pull_slow(kFirst, later(900ms), out));  // has them itself
  EXPECT_TRUE(queue_.pull_slow(kSecond, later(900ms), out));
  EXPECT_TRUE(queue_.pull_slow(kSecond, later(900ms), out));
  EXPECT_FALSE(queue_.pull_slow(kSecond, later(900ms), out));  // 2 of 103 is all
  EXPECT_TRUE(queue_.pull_slow(kSecond, later(10s), out));     // but for those that seem to be stuck
  EXPECT_TRUE(queue_.pull_slow(kSecond, later(10s), out));
  EXPECT_FALSE(queue_.pull_slow(kSecond, later(10s), out));  // each once
  EXPECT_EQ(numbers(out), (Numbers{100, 101, 102, 103}));
  queue_.lose(kFirst);
  EXPECT_FALSE(queue_.has_ready());  // kSecond carries them now
  queue_.lose(kSecond);
  EXPECT_TRUE(queue_.has_ready());
}

TEST_F(SendQueueTest, test_numbers_do_not_run_away_from_the_oldest_one) {
  OutgoingChunk empty;
  empty.chunk_count = kMaxChunkCount;
  static_assert(kMaxChunkCount == kMaxNumberSpan);
  for (empty.chunk = 0; empty.chunk < kMaxChunkCount; ++empty.chunk) {
    ASSERT_TRUE(queue_.push(empty, nullptr).is_ok());
  }
  push(1000, 1);
  const auto all = pull(kFirst, 2 * kMaxNumberSpan);
  ASSERT_EQ(all.size(), kMaxNumberSpan);
  EXPECT_FALSE(queue_.has_ready());
  ASSERT_TRUE(acknowledge(1, 64, 1).is_ok());  // one in the middle makes no room
  EXPECT_FALSE(queue_.has_ready());
  ASSERT_TRUE(acknowledge(2).is_ok());
  EXPECT_EQ(numbers(pull(kFirst)), Numbers{kMaxNumberSpan + 1});
}

TEST(ControlLog, test_packets_are_sent_again_on_a_new_stream_until_acknowledged) {
  ControlLog log;
  std::vector<WireHeader> out;
  const auto take = [&] {
    out.clear();
    log.take_unsent(out);
    std::vector<std::uint64_t> numbers;
    for (const WireHeader& header : out) numbers.push_back(header.sequence);
    return numbers;
  };
  using Numbers = std::vector<std::uint64_t>;
  for (int i = 0; i < 3; ++i) log.push(make_header(PacketType::Grant));
  EXPECT_EQ(take(), (Numbers{1, 2, 3}));
  EXPECT_EQ(take(), Numbers{});
  ASSERT_TRUE(log.acknowledge(1).is_ok());
  log.push(make_header(PacketType::Grant));
  ASSERT_TRUE(log.restart(2).is_ok());
  EXPECT_EQ(take(), (Numbers{3, 4}));
  EXPECT_EQ(log.acknowledge(5).code(), StatusCode::CorruptData);
  EXPECT_EQ(log.restart(5).code(), StatusCode::CorruptData);
  EXPECT_EQ(log.restart(1).code(), StatusCode::CorruptData);  // it had two
  EXPECT_EQ(log.restart(~std::uint64_t{0}).code(), StatusCode::CorruptData);
  EXPECT_FALSE(log.all_acknowledged());
  ASSERT_TRUE(log.acknowledge(4).is_ok());
  EXPECT_TRUE(log.all_acknowledged());
}

// spec channel 6.2: "The receiver MUST act on each once; a gap is an error."
TEST(ControlLog, test_packets_are_taken_once_and_without_gaps) {
  ControlLog log;
  EXPECT_EQ(log.receive(0).status().code(), StatusCode::CorruptData);
  EXPECT_EQ(log.receive(2).status().code(), StatusCode::CorruptData);
  EXPECT_TRUE(*log.receive(1));
  EXPECT_FALSE(*log.receive(1));
  EXPECT_TRUE(*log.receive(2));
  EXPECT_FALSE(*log.receive(1));
  EXPECT_EQ(log.received(), 2U);
}

}  // namespace
}  // namespace geocomm::transport::testing
