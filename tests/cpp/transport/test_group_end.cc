// A group that ends leaves nothing behind: neither memory nor credit that another one lacks.
#include <gtest/gtest.h>

#include <thread>

#include "transport/mux/receive_table.h"
#include "transport/mux/send_queue.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

constexpr std::uint64_t kEnds = 5;
constexpr std::uint64_t kLives = 6;
const Status kWhy(StatusCode::Aborted, "the group was aborted");

template <typename Condition>
bool comes_true(const Condition& condition) {
  for (const Deadline end = patience(); !end.expired(); std::this_thread::sleep_for(1ms)) {
    if (condition()) return true;
  }
  return condition();
}

// Two groups on one channel: `from` is ahead of `to`, and has all the credit under way for the one that ends.
class GroupEndTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kCreditMiB = 8;
  static constexpr std::uint64_t kEarlyOps = 6;  // of 2 MiB each

  void SetUp() override {
    EndpointOptions options;
    options.max_unexpected_bytes = kCreditMiB * kMiB;
    pair_ = std::make_unique<Pair>(options);
    pair_->connect();
  }
  Endpoint& from() { return *pair_->high; }
  Endpoint& to() { return *pair_->low; }
  Channel& from_channel() { return *pair_->high_channel; }
  Channel& to_channel() { return *pair_->low_channel; }

  // More than the credit, of operations that the other side never posts.
  void send_early() {
    const auto data = pattern(kMiB, 1);
    for (std::uint64_t op = 1; op <= kEarlyOps; ++op) {
      for (std::uint32_t i = 0; i < 2; ++i) {
        ASSERT_TRUE(from_channel().send(chunk_of({kEnds, op}, data, i, 2)).is_ok());
      }
    }
    ASSERT_TRUE(comes_true([&] { return to_channel().stats().early_bytes_held == kCreditMiB * kMiB; }));
    EXPECT_EQ(from_channel().stats().early_bytes_sent, kCreditMiB * kMiB);
  }
  // Early operations of the other group that take all of the credit arrive before anybody posts them.
  void expect_full_credit() {
    EXPECT_TRUE(comes_true([&] { return to_channel().stats().early_bytes_held == 0; }));
    EXPECT_TRUE(comes_true([&] { return from_channel().stats().early_bytes_sent == 0; }));
    SentLatch sent;
    for (std::uint64_t op = 1; op <= kCreditMiB; ++op) {
      ASSERT_TRUE(from_channel().send(chunk_of({kLives, op}, pattern(kMiB, op)), sent.callback()).is_ok());
    }
    EXPECT_EQ(sent.wait(kCreditMiB).size(), kCreditMiB);
    EXPECT_TRUE(comes_true([&] { return to_channel().stats().early_bytes_held == kCreditMiB * kMiB; }));
    for (std::uint64_t op = 1; op <= kCreditMiB; ++op) {
      auto sink = std::make_shared<CollectingSink>(1);
      ASSERT_TRUE(to_channel().post_receive({kLives, op}, 7, 1, sink).is_ok());
      ASSERT_TRUE(sink->wait().is_ok());
      EXPECT_EQ(sink->data(), pattern(kMiB, op));
    }
    EXPECT_TRUE(comes_true([&] { return from_channel().stats().early_bytes_sent == 0; }));
  }

  std::unique_ptr<Pair> pair_;
};

TEST_F(GroupEndTest, test_group_that_ends_in_the_middle_of_its_operations_gives_all_credit_back) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  const auto data = pattern(kMiB, 1);
  for (std::uint64_t op = 1; op <= 40; ++op) {
    sinks.push_back(std::make_shared<CollectingSink>(2));
    if (op % 2 == 0) {
      ASSERT_TRUE(to_channel().post_receive({kEnds, op}, 7, 2, sinks.back()).is_ok());
    }
    for (std::uint32_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(from_channel().send(chunk_of({kEnds, op}, data, i, 2)).is_ok());
    }
  }
  while (sinks[1]->count() == 0) std::this_thread::yield();
  std::thread other([&] { from().close_group(kEnds, kWhy, QueuedChunks::Drop); });
  to().close_group(kEnds, kWhy, QueuedChunks::Drop);
  other.join();
  expect_full_credit();
}

TEST_F(GroupEndTest, test_chunks_queued_before_leaving_in_good_order_arrive) {
  auto sink = std::make_shared<CollectingSink>(40);
  for (std::uint32_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(from_channel().send(chunk_of({kEnds, 1}, pattern(kMiB, i), i, 40)).is_ok());
  }
  from().close_group(kEnds, kWhy, QueuedChunks::Send);
  EXPECT_EQ(from_channel().send(chunk_of({kEnds, 2}, {})).code(), StatusCode::Aborted);
  ASSERT_TRUE(to_channel().post_receive({kEnds, 1}, 7, 40, sink).is_ok());
  ASSERT_TRUE(sink->wait().is_ok());
  for (std::uint32_t i = 0; i < 40; ++i) EXPECT_EQ(sink->data(i), pattern(kMiB, i)) << i;
  to().close_group(kEnds, kWhy, QueuedChunks::Send);
  expect_full_credit();
}

TEST_F(GroupEndTest, test_chunk_that_outlives_its_group_arrives_though_all_else_is_dropped) {
  auto notice = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(to_channel().post_receive({kEnds, 0}, 7, 1, notice).is_ok());
  send_early();  // the last of its operations wait for credit, so that they are queued for sure
  OutgoingChunk said = chunk_of({kEnds, 0}, pattern(100, 9));
  said.outlives_group = true;
  ASSERT_TRUE(from_channel().send(std::move(said)).is_ok());
  from().close_group(kEnds, kWhy, QueuedChunks::Drop);
  ASSERT_TRUE(notice->wait().is_ok());
  EXPECT_EQ(notice->data(), pattern(100, 9));

  auto queued = std::make_shared<CollectingSink>(2);
  auto arrived = std::make_shared<CollectingSink>(2);
  ASSERT_TRUE(to_channel().post_receive({kEnds, kEarlyOps}, 7, 2, queued).is_ok());
  ASSERT_TRUE(to_channel().post_receive({kEnds, 1}, 7, 2, arrived).is_ok());
  ASSERT_TRUE(arrived->wait().is_ok());
  // It knows that the second one was posted, and so the first one too.
  ASSERT_TRUE(comes_true([&] { return from_channel().stats().early_bytes_sent == (kCreditMiB - 2) * kMiB; }));
  // What the other group sends from now on takes turns with it, so it would be here by then.
  expect_transfer(from_channel(), to_channel(), 100, kMiB, 8);
  to().close_group(kEnds, kWhy, QueuedChunks::Drop);
  EXPECT_EQ(queued->wait().code(), StatusCode::Aborted);
  EXPECT_EQ(queued->count(), 0U);
  expect_full_credit();
}

TEST(GroupEndQueue, test_chunk_that_outlives_its_group_waits_for_credit_and_goes) {
  ClosedGroups closed;
  SendQueue queue(closed);
  ASSERT_TRUE(queue.push(chunk_of({kEnds, 1}, pattern(kMiB, 1)), nullptr).is_ok());
  OutgoingChunk said = chunk_of({kEnds, 0}, pattern(100, 9));
  said.outlives_group = true;
  ASSERT_TRUE(queue.push(std::move(said), nullptr).is_ok());
  closed.add(kEnds);
  (void)queue.close_group(kEnds, QueuedChunks::Drop);
  EXPECT_FALSE(queue.has_ready());
  ASSERT_TRUE(queue.granted({kEnds, 0}).is_ok());
  std::vector<OutSegment> out;
  (void)queue.pull({1, 1}, kMiB, 15, SendQueue::Clock::now(), out);
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].chunk->chunk.key.op, 0U);
}

TEST(ClosedGroups, test_only_the_latest_groups_are_remembered) {
  ClosedGroups closed;
  for (std::uint64_t group = 0; group <= ClosedGroups::kMost; ++group) {
    closed.add(group);
    closed.add(group);  // once more is no other one
  }
  EXPECT_FALSE(closed.contains(0));
  for (std::uint64_t group = 1; group <= ClosedGroups::kMost; ++group) ASSERT_TRUE(closed.contains(group));
}

// A table without a channel: what comes is made by hand.
class ReceiveTableTest : public ::testing::Test {
 protected:
  static WireHeader first_segment(OpKey key, std::uint32_t chunk, std::uint32_t count, std::uint32_t bytes) {
    WireHeader header = make_header(PacketType::Segment);
    header.group = key.group;
    header.op = key.op;
    header.descriptor = 7;
    header.chunk = chunk;
    header.chunk_count = count;
    header.chunk_bytes = bytes;
    header.length = segment_length(bytes, 0);
    return header;
  }

  core::BufferPool pool_;
  ClosedGroups closed_;
  ReceiveTable table_{std::uint64_t{1} << 30, pool_, closed_};
};

TEST_F(ReceiveTableTest, test_operations_of_ended_groups_do_not_add_up) {
  // Each time the first half of an operation comes, and the rest never does.
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    const std::uint64_t group = i / 10'000;
    if (i % 10'000 == 5'000) {
      closed_.add(group);
      (void)table_.close_group(group, kWhy);
    }
    auto begun = table_.begin(first_segment({group, i}, 0, 2, 100));
    ASSERT_TRUE(begun.is_ok()) << begun.status().to_string();
    EXPECT_EQ(begun->announce, i % 10'000 >= 5'000);
    if (i % 3 == 0) table_.finish(std::move(begun->incoming));
    if (i % 7 == 0) (void)table_.cancel({group, i});
  }
  EXPECT_EQ(table_.unexpected_bytes(), 0U);
}

TEST_F(ReceiveTableTest, test_end_of_a_group_says_which_operations_were_thrown_away) {
  for (std::uint64_t op = 1; op <= 4; ++op) {
    auto begun = table_.begin(first_segment({kEnds, op}, 0, 1, 100));
    ASSERT_TRUE(begun.is_ok());
    if (op > 2) table_.finish(std::move(begun->incoming));
  }
  ASSERT_TRUE(table_.post({kEnds, 3}, 7, 1, std::make_shared<CollectingSink>(1)).is_ok());
  ASSERT_TRUE(table_.post({kEnds, 9}, 7, 1, std::make_shared<CollectingSink>(1)).is_ok());
  closed_.add(kEnds);
  std::vector<OpKey> told = table_.close_group(kEnds, kWhy);
  std::sort(told.begin(), told.end());
  EXPECT_EQ(told, (std::vector<OpKey>{{kEnds, 1}, {kEnds, 2}, {kEnds, 4}}));
  EXPECT_TRUE(table_.close_group(kEnds, kWhy).empty());
}

TEST_F(ReceiveTableTest, test_many_chunks_that_were_begun_before_the_post_are_each_delivered_once) {
  constexpr std::uint32_t kChunks = 16 * 1024;
  constexpr std::uint32_t kBytes = 4096;
  std::vector<Incoming> begun;
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    auto segment = table_.begin(first_segment({kLives, 1}, i, kChunks, kBytes));
    ASSERT_TRUE(segment.is_ok());
    std::memcpy(segment->incoming.dest, pattern(kBytes, i).data(), kBytes);
    begun.push_back(std::move(segment->incoming));
  }
  for (std::uint32_t i = 0; i < kChunks / 2; ++i) table_.finish(std::move(begun[i]));
  auto sink = std::make_shared<CollectingSink>(kChunks);
  ASSERT_TRUE(table_.post({kLives, 1}, 7, kChunks, sink).is_ok());
  EXPECT_EQ(sink->count(), kChunks / 2);
  for (std::uint32_t i = kChunks / 2; i < kChunks; ++i) {
    table_.finish(std::move(begun[i]));
    ASSERT_EQ(sink->count(), i + 1);  // at once, whatever else waits
  }
  for (std::uint32_t i = 0; i < kChunks; i += 101) EXPECT_EQ(sink->data(i), pattern(kBytes, i));
  EXPECT_EQ(table_.unexpected_bytes(), 0U);
}

}  // namespace
}  // namespace geocomm::transport::testing
