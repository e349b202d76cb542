// What is kept until it is acknowledged, what goes out again, and what an acknowledgement may say.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

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

// A network that breaks loses all streams of a link at once, with up to a million segments under way.
TEST(UnackedSegments, test_each_lost_stream_costs_what_it_carried) {
  constexpr std::uint64_t kSegments = 12'800;
  constexpr std::uint16_t kStreams = 64;
  UnackedSegments unacked;
  const auto chunk = std::make_shared<OutChunk>();
  const auto now = UnackedSegments::Clock::now();
  const auto stream = [](std::uint64_t i) {
    return Carrier{static_cast<std::uint16_t>(1 + i % kStreams), 1};
  };
  for (std::uint64_t i = 0; i < kSegments; ++i) {
    OutSegment segment{.chunk = chunk};
    unacked.add(segment, stream(i), now);
  }
  // Some were acknowledged out of order, and some went out again elsewhere.
  std::vector<UnackedSegments::Acked> acked;
  ASSERT_TRUE(unacked.acknowledge({.base = 64, .bits = ~std::uint64_t{0}}, acked).is_ok());
  ASSERT_EQ(acked.size(), 64U);
  for (std::uint64_t number = 129; number <= 192; ++number) (void)unacked.hedge(number, Carrier{1, 1});
  std::uint64_t most = 0;
  const std::uint64_t before = unacked.looks();
  for (std::uint64_t i = 0; i < kStreams; ++i) {
    const std::uint64_t here = unacked.looks();
    unacked.lose(stream(i));
    most = std::max(most, unacked.looks() - here);
  }
  EXPECT_EQ(unacked.looks() - before, kSegments - acked.size());
  EXPECT_LE(most, kSegments / kStreams + 64);
  const std::uint64_t after = unacked.looks();
  unacked.lose(stream(0));
  unacked.lose(Carrier{1, 2});
  EXPECT_EQ(unacked.looks(), after) << "nothing was lost";
  // In order of their numbers, each once, and at a fixed cost.
  for (std::uint64_t number = 1; number <= kSegments; ++number) {
    if (number >= 64 && number < 128) continue;
    ASSERT_TRUE(unacked.has_lost());
    ASSERT_EQ(unacked.resend(Carrier{1, 2}, now).number, number);
  }
  EXPECT_FALSE(unacked.has_lost());
  EXPECT_LE(unacked.looks() - after, 5 * kSegments);
  acked.clear();
  ASSERT_TRUE(unacked.acknowledge({.low = kSegments + 1}, acked).is_ok());
  EXPECT_EQ(acked.size(), kSegments - 64);
  EXPECT_TRUE(unacked.empty());
}

// Which segments are lost, against a list that is walked in full.
TEST(UnackedSegments, test_what_is_lost_is_what_the_connection_carried_last) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    UnackedSegments unacked;
    const auto chunk = std::make_shared<OutChunk>();
    const auto now = UnackedSegments::Clock::now();
    std::map<std::uint64_t, Carrier> carried;  // not acknowledged, not lost
    std::set<std::uint64_t> lost;
    std::uint64_t next = 1;
    for (int step = 0; step < 400; ++step) {
      const Carrier carrier{static_cast<std::uint16_t>(1 + random() % 4),
                            static_cast<std::uint32_t>(1 + random() % 2)};
      switch (random() % 8) {
        case 0:
        case 1:
        case 2:
        case 3: {
          OutSegment segment{.chunk = chunk};
          unacked.add(segment, carrier, now);
          ASSERT_EQ(segment.number, next);
          carried[next++] = carrier;
          break;
        }
        case 4:
          unacked.lose(carrier);
          std::erase_if(carried, [&](const auto& one) {
            const bool gone = one.second == carrier;
            if (gone) lost.insert(one.first);
            return gone;
          });
          break;
        case 5: {
          std::vector<UnackedSegments::Acked> acked;
          const std::uint64_t base = random() % next / 64 * 64;
          std::uint64_t bits = (std::uint64_t{random()} << 32 | random()) & random();
          for (int bit = 63; bit >= 0; --bit) {
            if (base + static_cast<std::uint64_t>(bit) >= next) bits &= ~(std::uint64_t{1} << bit);
          }
          const std::uint64_t low = random() % 4 == 0 ? random() % (base + 1) : 1;
          ASSERT_TRUE(unacked.acknowledge({.low = low, .base = base, .bits = bits}, acked).is_ok());
          const auto covered = [&](std::uint64_t number) {
            return number < low ||
                   (number >= base && number - base < 64 && (bits >> (number - base) & 1) != 0);
          };
          const std::size_t had = carried.size() + lost.size();
          std::erase_if(carried, [&](const auto& one) { return covered(one.first); });
          std::erase_if(lost, covered);
          ASSERT_EQ(acked.size(), had - carried.size() - lost.size());
          break;
        }
        case 6:
          if (lost.empty()) break;
          ASSERT_EQ(unacked.resend(carrier, now).number, *lost.begin());
          carried[*lost.begin()] = carrier;
          lost.erase(lost.begin());
          break;
        default:
          if (carried.empty()) break;
          (void)unacked.hedge(carried.begin()->first, carrier);
          carried.begin()->second = carrier;
      }
      ASSERT_EQ(unacked.has_lost(), !lost.empty());
      ASSERT_EQ(unacked.empty(), carried.empty() && lost.empty());
    }
  }
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

// Of many operations whose chunks wait, are ready, half sent and in flight, some are cancelled, and one of
// the groups closes: their chunks go, whatever state they are in, each is reported once, and the others go
// out whole.
TEST_F(SendQueueTest, test_what_is_cancelled_is_all_that_goes_whatever_state_it_is_in) {
  constexpr std::uint64_t kGroups = 3;
  constexpr std::uint64_t kOps = 40;
  constexpr std::uint32_t kChunks = 3;
  constexpr std::size_t kBytes = kMaxSegmentBytes + 100;  // two segments
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    ClosedGroups closed;
    SendQueue queue(closed);
    queue.set_peer_limit(30 * unexpected_charge(kBytes));  // the others wait for grants
    std::map<OpKey, int> reported;
    std::map<OpKey, std::size_t> pulled;
    std::uint64_t last = 0;
    const auto pull = [&](std::size_t most) {
      std::vector<OutSegment> out;
      (void)queue.pull(kFirst, std::size_t{1} << 40, most, SendQueue::Clock::now(), out);
      for (const OutSegment& segment : out) {
        last = segment.number;
        pulled[segment.chunk->chunk.key] += segment.length;
        if (const SentCallback callback = queue.segment_sent(segment)) callback(Status::ok());
      }
      return out.size();
    };
    const auto acknowledge = [&](std::uint64_t low) {
      std::vector<SentCallback> callbacks;
      std::uint64_t bytes = 0;
      ASSERT_TRUE(queue.acknowledge({.low = low}, SendQueue::Clock::now(), callbacks, bytes).is_ok());
      for (const SentCallback& callback : callbacks) callback(Status::ok());
    };
    for (std::uint64_t op = 0; op < kOps; ++op) {
      for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        const OpKey key{op % kGroups, op};
        ASSERT_TRUE(queue
                        .push(chunk_of(key, pattern(kBytes, op), chunk, kChunks),
                              [&reported, key](const Status&) { ++reported[key]; })
                        .is_ok());
      }
    }
    for (int i = 0; i < 15; ++i) ASSERT_TRUE(queue.granted({random() % kGroups, random() % kOps}).is_ok());
    (void)pull(1 + random() % 100);
    acknowledge(1 + random() % last);
    std::set<OpKey> gone;
    for (int i = 0; i < 10; ++i) {
      const std::uint64_t op = random() % kOps;
      gone.insert({op % kGroups, op});
      for (const SentCallback& callback : queue.cancel({op % kGroups, op})) callback(Status::ok());
    }
    closed.add(2);
    for (const SentCallback& callback : queue.close_group(2, QueuedChunks::Drop)) callback(Status::ok());
    for (std::uint64_t op = 2; op < kOps; op += kGroups) gone.insert({2, op});
    const auto before = pulled;
    for (std::uint64_t op = 0; op < kOps; ++op) ASSERT_TRUE(queue.granted({op % kGroups, op}).is_ok());
    while (pull(1000) > 0) {
    }
    acknowledge(last + 1);
    EXPECT_TRUE(queue.empty());
    EXPECT_EQ(queue.charged_bytes(), 0U);
    for (std::uint64_t op = 0; op < kOps; ++op) {
      const OpKey key{op % kGroups, op};
      EXPECT_EQ(reported[key], int{kChunks}) << "operation " << op;
      if (gone.contains(key)) {
        EXPECT_EQ(pulled[key], before.contains(key) ? before.at(key) : 0U) << "operation " << op;
      } else {
        EXPECT_EQ(pulled[key], kChunks * kBytes) << "operation " << op;
      }
    }
  }
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
