// Credit, cancelling, mismatches, groups that end and when the peer is told: two Muxes whose users do not run
// in step.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "mux_pair.h"

namespace geocomm::transport::testing {
namespace {

void send_op(MuxEnd& end, OpKey key, std::uint32_t chunks, std::size_t chunk_bytes,
             SentLatch* sent = nullptr) {
  const auto data = pattern(chunk_bytes, key.op);
  for (std::uint32_t i = 0; i < chunks; ++i)
    ASSERT_TRUE(end.send(chunk_of(key, data, i, chunks), sent).is_ok());
}

std::size_t results(SentLatch& sent) {
  return sent.wait(0).size();
}

// Who ends an operation gets its memory back: the user frees it, or uses it for something else.
TEST(MuxFlow, test_end_of_an_operation_waits_for_who_writes_to_its_memory_and_lets_nobody_begin) {
  const Status why(StatusCode::Aborted, "the test ends it");
  const std::vector<std::function<void(MuxEnd&)>> ends = {
      [](MuxEnd& end) { end.cancel({1, 1}); }, [](MuxEnd& end) { end.close_group(1, QueuedChunks::Drop); },
      [&](MuxEnd& end) { (void)end.mux().fail(why, false); }};
  for (const auto& end : ends) {
    MuxPair pair;
    const auto sink = std::make_shared<CollectingSink>(1);
    ASSERT_TRUE(pair.low.post({1, 1}, 1, sink).is_ok());
    send_op(pair.high, {1, 1}, 1, kMiB);
    while (pair.low.carry_to(pair.high)) {
    }
    std::vector<OutSegment> segments;
    for (int i = 0; i < 2; ++i) pair.high.mux().pull(kData, pair.timers.now(), false, segments);
    ASSERT_GT(segments.size(), 1U);
    const auto first = pair.low.mux().begin(segment_header(segments[0]));
    const auto second = pair.low.mux().begin(segment_header(segments[1]));
    ASSERT_TRUE(first.is_ok() && second.is_ok());
    ASSERT_TRUE(first->reception->try_claim());  // as a thread does that reads from a socket
    std::atomic<bool> begins{false};
    std::atomic<bool> wrote{false};
    std::thread user([&] {
      begins = true;
      end(pair.low);
      EXPECT_TRUE(wrote);
    });
    while (!begins) std::this_thread::yield();
    while (!first->reception->op->tombstone) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it would not wait
    EXPECT_FALSE(sink->error().has_value()) << "its owner heard of the end before";
    EXPECT_FALSE(second->reception->try_claim());
    EXPECT_FALSE(second->reception->claim());
    std::memset(first->incoming.dest, 1, kMaxSegmentBytes);
    wrote = true;
    first->reception->release();
    user.join();
    EXPECT_FALSE(first->reception->try_claim());
    EXPECT_TRUE(first->superseded() && second->superseded());
  }
}

// spec channel 7.1: "Charges outstanding MUST NOT exceed the receiver's max_unexpected_bytes."
TEST(MuxFlow, test_credit_is_what_the_receiver_offers) {
  MuxPair pair(64 * kMiB, 2 * kMiB);
  send_op(pair.low, {1, 1}, 8, kMiB);
  send_op(pair.high, {1, 1}, 8, kMiB);
  pair.settle();
  EXPECT_EQ(pair.low.mux().stats().payload_received, 8 * kMiB);
  EXPECT_EQ(pair.high.mux().stats().payload_received, 2 * kMiB);
  EXPECT_EQ(pair.low.mux().stats().early_bytes_sent, 2 * kMiB);
  auto sink = std::make_shared<CollectingSink>(8);
  ASSERT_TRUE(pair.high.post({1, 1}, 8, sink).is_ok());
  pair.settle();
  EXPECT_EQ(sink->count(), 8U);
  EXPECT_EQ(pair.low.mux().stats().early_bytes_sent, 0U);
}

TEST(MuxFlow, test_credit_comes_back_when_operations_are_posted) {
  MuxPair pair(kMiB);
  // In all far more than the credit, in operations that are posted late.
  for (std::uint64_t op = 0; op < 20; ++op) send_op(pair.high, {1, op}, 1, kMiB);
  for (std::uint64_t op = 0; op < 20; ++op) {
    pair.settle();
    EXPECT_EQ(pair.low.mux().stats().payload_received, (op + 1) * kMiB);
    auto sink = std::make_shared<CollectingSink>(1);
    ASSERT_TRUE(pair.low.post({1, op}, 1, sink).is_ok());
    EXPECT_EQ(sink->data(), pattern(kMiB, op));
  }
  send_op(pair.high, {1, 100}, 1, kMiB);
  pair.settle();
  EXPECT_EQ(pair.low.mux().stats().payload_received, 21 * kMiB);
}

TEST(MuxFlow, test_descriptor_mismatch_is_told_to_the_sink_and_spares_others) {
  for (const bool post_first : {true, false}) {
    MuxPair pair;
    auto sink = std::make_shared<CollectingSink>(1);
    if (post_first) {
      ASSERT_TRUE(pair.low.post({1, 1}, 1, sink, 8).is_ok());
    }
    send_op(pair.high, {1, 1}, 2, kMiB);
    pair.settle();
    if (!post_first) {
      ASSERT_TRUE(pair.low.post({1, 1}, 1, sink, 8).is_ok());
    }
    EXPECT_EQ(sink->error().value().code(), StatusCode::InvalidArgument);
    EXPECT_EQ(sink->count(), 0U);
    auto good = std::make_shared<CollectingSink>(1);
    ASSERT_TRUE(pair.low.post({1, 3}, 1, good).is_ok());
    send_op(pair.high, {1, 3}, 1, kMiB);
    pair.settle();
    EXPECT_EQ(good->count(), 1U);
    EXPECT_TRUE(pair.high.mux().drained());
  }
}

TEST(MuxFlow, test_sink_without_room_fails_only_its_operation) {
  MuxPair pair;
  auto posted = std::make_shared<CollectingSink>(2);
  posted->refuse_place = true;
  ASSERT_TRUE(pair.low.post({1, 1}, 2, posted).is_ok());
  send_op(pair.high, {1, 1}, 2, kMiB);
  send_op(pair.high, {1, 2}, 1, kMiB);
  pair.settle();
  EXPECT_EQ(posted->error().value().code(), StatusCode::OutputTooSmall);
  auto unexpected = std::make_shared<CollectingSink>(1);
  unexpected->refuse_place = true;
  (void)pair.low.post({1, 2}, 1, unexpected);
  EXPECT_EQ(unexpected->error().value().code(), StatusCode::OutputTooSmall);
  pair.settle();
  EXPECT_TRUE(pair.high.mux().drained());
}

TEST(MuxFlow, test_cancel_discards_what_still_comes) {
  MuxPair pair;
  auto sink = std::make_shared<CollectingSink>(40);
  const std::weak_ptr<CollectingSink> watch = sink;
  ASSERT_TRUE(pair.low.post({1, 1}, 40, sink).is_ok());
  send_op(pair.high, {1, 1}, 40, kMiB);
  while (sink->count() == 0) (void)pair.high.carry_to(pair.low);
  pair.low.cancel({1, 1});
  const std::size_t count = sink->count();
  EXPECT_LT(count, 40U);
  pair.settle();
  EXPECT_EQ(pair.low.mux().stats().payload_received, 40 * kMiB);
  EXPECT_EQ(sink->count(), count);
  EXPECT_FALSE(sink->error().has_value());
  sink.reset();
  EXPECT_TRUE(watch.expired()) << "the mux keeps a cancelled sink";
}

TEST(MuxFlow, test_close_group_ends_its_receives_and_discards_late_segments) {
  MuxPair pair(4 * kMiB);
  auto doomed = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low.post({5, 1}, 1, doomed).is_ok());
  pair.low.close_group(5, QueuedChunks::Drop);
  EXPECT_EQ(doomed->error().value().code(), StatusCode::Aborted);
  auto refused = std::make_shared<CollectingSink>(1);
  EXPECT_EQ(pair.low.post({5, 2}, 1, refused).code(), StatusCode::Aborted);
  EXPECT_EQ(refused->error().value().code(), StatusCode::Aborted);
  EXPECT_EQ(pair.low.send(chunk_of({5, 2}, {})).code(), StatusCode::Aborted);
  // The peer knows nothing of it and sends more than the credit: everything must go through and vanish.
  SentLatch sent;
  for (std::uint64_t op = 1; op <= 12; ++op) send_op(pair.high, {5, op}, 1, kMiB, &sent);
  pair.settle();
  EXPECT_EQ(results(sent), 12U);
  EXPECT_EQ(pair.low.mux().stats().payload_received, 12 * kMiB);
  EXPECT_EQ(pair.low.mux().stats().early_bytes_held, 0U);
  EXPECT_EQ(pair.high.mux().stats().early_bytes_sent, 0U);
}

TEST(MuxFlow, test_close_group_gives_the_credit_of_unexpected_data_back) {
  MuxPair pair(4 * kMiB);
  for (std::uint64_t op = 1; op <= 4; ++op) send_op(pair.high, {5, op}, 1, kMiB);
  pair.settle();
  SentLatch sent;
  send_op(pair.high, {6, 1}, 1, kMiB, &sent);
  pair.settle();
  EXPECT_EQ(results(sent), 0U);
  pair.low.close_group(5, QueuedChunks::Drop);
  pair.settle();
  EXPECT_EQ(results(sent), 1U);
}

// ---- when the peer is told ----

TEST(MuxFlow, test_acknowledgement_waits_five_milliseconds_for_others) {
  MuxPair pair;
  send_op(pair.high, {1, 1}, 1, 100);
  ASSERT_TRUE(pair.high.carry_to(pair.low));
  EXPECT_FALSE(pair.low.carry_to(pair.high));
  EXPECT_EQ(pair.low.mux().due(pair.timers.now()), pair.timers.now() + 5ms);
  pair.timers.advance(4ms);
  EXPECT_FALSE(pair.low.carry_to(pair.high));
  EXPECT_FALSE(pair.high.mux().drained());
  pair.timers.advance(1ms);
  EXPECT_TRUE(pair.low.carry_to(pair.high));
  EXPECT_TRUE(pair.high.mux().drained());
}

TEST(MuxFlow, test_acknowledgement_of_32_segments_waits_for_nothing) {
  MuxPair pair;
  send_op(pair.high, {1, 1}, 31, 100);
  while (pair.high.carry_to(pair.low)) {
  }
  EXPECT_FALSE(pair.low.carry_to(pair.high));
  send_op(pair.high, {1, 2}, 1, 100);
  while (pair.high.carry_to(pair.low)) {
  }
  EXPECT_TRUE(pair.low.carry_to(pair.high));
  EXPECT_TRUE(pair.high.mux().drained());
}

TEST(MuxFlow, test_acknowledgement_goes_along_with_a_grant) {
  MuxPair pair;
  send_op(pair.high, {1, 1}, 1, 100);
  ASSERT_TRUE(pair.high.carry_to(pair.low));
  ASSERT_TRUE(pair.low.post({1, 1}, 1, std::make_shared<CollectingSink>(1)).is_ok());
  EXPECT_TRUE(pair.low.carry_to(pair.high));
  EXPECT_TRUE(pair.high.mux().drained());
}

TEST(MuxFlow, test_segment_that_a_carrier_keeps_goes_over_another_and_counts_once) {
  MuxPair pair;
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low.post({1, 1}, 1, sink).is_ok());
  pair.settle();
  send_op(pair.high, {1, 1}, 1, 100);
  std::vector<OutSegment> kept;
  pair.high.mux().pull(kData, pair.timers.now(), false, kept);
  ASSERT_EQ(kept.size(), 1U);
  std::vector<OutSegment> copy;
  pair.high.mux().pull({2, 1}, pair.timers.now(), true, copy);
  EXPECT_TRUE(copy.empty());  // it is not slow yet
  pair.timers.advance(2s);
  EXPECT_TRUE(pair.high.mux().has_slow(pair.timers.now()));
  pair.high.mux().pull(kData, pair.timers.now(), true, copy);
  EXPECT_TRUE(copy.empty());  // it has it already
  pair.high.mux().pull({2, 1}, pair.timers.now(), true, copy);
  ASSERT_EQ(copy.size(), 1U);
  EXPECT_EQ(copy[0].number, kept[0].number);
  pair.low.receive(copy[0]);
  pair.low.receive(kept[0]);
  EXPECT_EQ(sink->count(), 1U);
  EXPECT_EQ(pair.high.mux().stats().resent_segments, 1U);
  EXPECT_EQ(pair.low.mux().stats().payload_received, 100U);
}

// ---- two groups: one end is ahead, and has all the credit under way for the group that ends ----

class MuxGroupEnd : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kCreditMiB = 8;
  static constexpr std::uint64_t kEarlyOps = 6;  // of 2 MiB each
  static constexpr std::uint64_t kEnds = 5;
  static constexpr std::uint64_t kLives = 6;

  // More than the credit, of operations that the other side never posts.
  void send_early() {
    for (std::uint64_t op = 1; op <= kEarlyOps; ++op) send_op(pair_.high, {kEnds, op}, 2, kMiB);
    pair_.settle();
    EXPECT_EQ(pair_.low.mux().stats().early_bytes_held, kCreditMiB * kMiB);
    EXPECT_EQ(pair_.high.mux().stats().early_bytes_sent, kCreditMiB * kMiB);
  }
  // Early operations of the other group that take all of the credit arrive before anybody posts them.
  void expect_full_credit() {
    pair_.settle();
    EXPECT_EQ(pair_.low.mux().stats().early_bytes_held, 0U);
    EXPECT_EQ(pair_.high.mux().stats().early_bytes_sent, 0U);
    SentLatch sent;
    for (std::uint64_t op = 1; op <= kCreditMiB; ++op) send_op(pair_.high, {kLives, op}, 1, kMiB, &sent);
    pair_.settle();
    EXPECT_EQ(results(sent), kCreditMiB);
    EXPECT_EQ(pair_.low.mux().stats().early_bytes_held, kCreditMiB * kMiB);
  }

  MuxPair pair_{kCreditMiB * kMiB};
};

TEST_F(MuxGroupEnd, test_group_dropped_by_the_sender_first_gives_all_credit_back) {
  send_early();
  pair_.high.close_group(kEnds, QueuedChunks::Drop);
  pair_.settle();
  pair_.low.close_group(kEnds, QueuedChunks::Drop);
  expect_full_credit();
}

TEST_F(MuxGroupEnd, test_group_dropped_by_the_receiver_first_gives_all_credit_back) {
  send_early();
  pair_.low.close_group(kEnds, QueuedChunks::Drop);
  pair_.settle();
  pair_.high.close_group(kEnds, QueuedChunks::Drop);
  expect_full_credit();
}

TEST_F(MuxGroupEnd, test_group_left_in_good_order_gives_all_credit_back) {
  send_early();
  pair_.high.close_group(kEnds, QueuedChunks::Send);
  pair_.low.close_group(kEnds, QueuedChunks::Send);
  expect_full_credit();
}

TEST_F(MuxGroupEnd, test_what_comes_after_the_end_takes_no_credit) {
  pair_.low.close_group(kEnds, QueuedChunks::Drop);
  SentLatch sent;
  const auto data = pattern(kMiB, 1);
  for (std::uint64_t op = 1; op <= 20; ++op) {
    ASSERT_TRUE(pair_.high.send(chunk_of({kEnds, op}, data, 0, 2), &sent).is_ok());
  }
  pair_.settle();
  EXPECT_EQ(results(sent), 20U);
  // Their second chunks never come.
  pair_.high.close_group(kEnds, QueuedChunks::Drop);
  expect_full_credit();
}

}  // namespace
}  // namespace geocomm::transport::testing
