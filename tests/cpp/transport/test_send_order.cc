// Whose segments go out first: small operations before bulk, groups by turns, what was lost before all.
#include <gtest/gtest.h>

#include <map>

#include "transport/mux/send_queue.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

constexpr Carrier kOnly{1, 1};
constexpr std::uint64_t kBulkGroup = 1;
constexpr std::uint64_t kOtherGroup = 2;

class SendOrderTest : public ::testing::Test {
 protected:
  SendOrderTest() { queue_.set_peer_limit(std::uint64_t{1} << 40); }

  void push(OpKey key, std::size_t bytes, std::uint32_t chunks = 1) {
    const std::vector<std::byte> data(bytes);
    for (std::uint32_t i = 0; i < chunks; ++i) {
      ASSERT_TRUE(queue_.push(chunk_of(key, data, i, chunks), nullptr).is_ok());
    }
  }
  // The next segment, as a stream pulls it.
  OutSegment pull() {
    std::vector<OutSegment> out;
    (void)queue_.pull(kOnly, 1, 1, SendQueue::Clock::now(), out);
    return out.empty() ? OutSegment{} : out.front();
  }
  static std::uint64_t group_of(const OutSegment& segment) { return segment.chunk->chunk.key.group; }

  ClosedGroups closed_;
  SendQueue queue_{closed_};
};

TEST_F(SendOrderTest, test_small_operations_pass_bulk_of_any_group) {
  push({kBulkGroup, 1}, kMiB, 64);
  (void)pull();
  push({kOtherGroup, 1}, 0);
  push({kBulkGroup, 2}, 64 * 1024);
  push({kOtherGroup, 2}, 1000, 16);
  for (int i = 0; i < 18; ++i) EXPECT_NE(pull().chunk->chunk.key, (OpKey{kBulkGroup, 1})) << i;
  EXPECT_EQ(pull().chunk->chunk.key, (OpKey{kBulkGroup, 1}));
}

TEST_F(SendOrderTest, test_chunks_of_a_large_operation_are_not_small_however_small_each_is) {
  push({kBulkGroup, 1}, kMiB, 4);
  push({kBulkGroup, 2}, 4000, 1000);
  push({kBulkGroup, 3}, 0, 10'000);
  for (std::uint64_t i = 0; i < 16; ++i) EXPECT_EQ(pull().chunk->chunk.key.op, 1U);
  EXPECT_EQ(pull().chunk->chunk.key.op, 2U);
}

TEST_F(SendOrderTest, test_groups_share_by_bytes_whatever_was_queued_first) {
  push({kBulkGroup, 1}, 8 * kMiB, 8);
  push({kOtherGroup, 1}, 100'000, 100);
  push({3, 1}, 300'000, 40);
  std::map<std::uint64_t, std::uint64_t> sent;
  while (sent[kOtherGroup] < 100 * 100'000) {
    const OutSegment segment = pull();
    sent[group_of(segment)] += segment.length;
    const auto [least, most] = std::minmax({sent[kBulkGroup], sent[kOtherGroup], sent[3]});
    ASSERT_LE(most - least, 3 * kMaxSegmentBytes);
  }
}

TEST_F(SendOrderTest, test_group_that_comes_late_waits_for_one_segment_of_each_other) {
  for (std::uint64_t group = 10; group < 14; ++group) push({group, 1}, 16 * kMiB);
  for (int i = 0; i < 50; ++i) (void)pull();
  push({kOtherGroup, 1}, kMiB);
  int before = 0;
  while (group_of(pull()) != kOtherGroup) ++before;
  EXPECT_LE(before, 8);
}

TEST_F(SendOrderTest, test_endless_small_operations_leave_bulk_its_turns) {
  push({kBulkGroup, 1}, 16 * kMiB);
  std::uint64_t small = 0;
  std::uint64_t bulk = 0;
  for (std::uint64_t op = 1; op <= 1000; ++op) {
    push({kOtherGroup, op}, 64 * 1024);
    const OutSegment segment = pull();
    (group_of(segment) == kBulkGroup ? bulk : small) += segment.length;
  }
  EXPECT_GE(bulk * 5, small);
  EXPECT_LE(bulk * 3, small);  // and no more than that
}

TEST_F(SendOrderTest, test_lost_segments_go_before_small_operations) {
  push({kBulkGroup, 1}, kMiB);
  const OutSegment lost = pull();
  push({kOtherGroup, 1}, 8);
  queue_.lose(kOnly);
  EXPECT_EQ(pull().number, lost.number);
  EXPECT_EQ(group_of(pull()), kOtherGroup);
}

TEST_F(SendOrderTest, test_chunks_of_a_posted_operation_take_their_old_places) {
  queue_.set_peer_limit(0);
  push({kBulkGroup, 1}, kMiB);
  push({kBulkGroup, 2}, kMiB);
  EXPECT_FALSE(queue_.has_ready());
  ASSERT_TRUE(queue_.granted({kBulkGroup, 2}).is_ok());
  EXPECT_EQ(pull().chunk->chunk.key.op, 2U);
  ASSERT_TRUE(queue_.granted({kBulkGroup, 1}).is_ok());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pull().chunk->chunk.key.op, 1U);
  EXPECT_EQ(pull().chunk->chunk.key.op, 2U);
}

TEST_F(SendOrderTest, test_small_operations_get_credit_before_bulk_that_waits) {
  queue_.set_peer_limit(kMiB);
  push({kBulkGroup, 1}, kMiB);
  push({kBulkGroup, 2}, kMiB);
  push({kOtherGroup, 1}, 8);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pull().chunk->chunk.key, (OpKey{kBulkGroup, 1}));
  EXPECT_FALSE(queue_.has_ready());
  ASSERT_TRUE(queue_.granted({kBulkGroup, 1}).is_ok());
  EXPECT_EQ(pull().chunk->chunk.key, (OpKey{kOtherGroup, 1}));
  EXPECT_FALSE(queue_.has_ready());
}

TEST_F(SendOrderTest, test_what_is_cancelled_takes_no_turn) {
  push({kBulkGroup, 1}, kMiB, 4);
  push({kOtherGroup, 1}, kMiB, 4);
  push({kOtherGroup, 2}, 8);
  EXPECT_TRUE(queue_.cancel({kOtherGroup, 1}).empty());
  EXPECT_TRUE(queue_.cancel({kOtherGroup, 2}).empty());
  for (int i = 0; i < 16; ++i) ASSERT_EQ(group_of(pull()), kBulkGroup);
  EXPECT_FALSE(queue_.has_ready());
}

}  // namespace
}  // namespace geocomm::transport::testing
