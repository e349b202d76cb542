// In which order the operations of ranks reach their streams, and what that holds up.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "stream_model.h"

namespace geocomm::binding {
namespace {

enum class Close { AtIssue, AtUse };

// Exchanges between ranks: each is over once all its operations are ready, and is told at once.
class ModelWorld {
 public:
  ModelWorld(int ranks, std::size_t queues, Close close) : close_(close) {
    for (int i = 0; i < ranks; ++i) ranks_.push_back(std::make_unique<ModelRank>(queues));
  }

  ModelRank& rank(int index) { return *ranks_[static_cast<std::size_t>(index)]; }
  OperationPtr issue(
      int index, int exchange, InnerUse inner, std::function<void(StreamDriver::Stream)> pre = nullptr,
      std::function<void(StreamDriver::Stream)> post = [](StreamDriver::Stream) {}) {
    auto operation = rank(index).issue(inner, std::move(pre), std::move(post));
    exchanges_[exchange].push_back({index, operation});
    if (close_ == Close::AtIssue) rank(index).order.use(operation);
    return operation;
  }

  // Until nothing moves any more. Whether all devices are idle then.
  bool run(int participants = 2) {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& rank : ranks_) moved |= rank->device.advance();
      for (auto& [number, members] : exchanges_) {
        if (over_.contains(number) || static_cast<int>(members.size()) < participants) continue;
        const bool ready =
            std::ranges::all_of(members, [](const auto& m) { return m.operation->is_ready(); });
        if (!ready) continue;
        over_.insert(number);
        moved = true;
        for (auto& member : members) {
          member.operation->open();
          rank(member.rank).order.enqueue_unused(member.operation);
        }
      }
    }
    return std::ranges::all_of(ranks_, [](auto& rank) { return rank->device.is_idle(); });
  }

 private:
  struct Member {
    int rank;
    OperationPtr operation;
  };
  const Close close_;
  std::vector<std::unique_ptr<ModelRank>> ranks_;
  std::map<int, std::vector<Member>> exchanges_;
  std::set<int> over_;
};

// Both ranks post the receive, compute what the other one gets, send it, and wait.
bool receive_before_send_ends(std::size_t queues, Close close) {
  ModelWorld world(2, queues, close);
  for (const int rank : {0, 1}) {
    auto& own = world.rank(rank);
    const auto receive = world.issue(rank, 1 - rank, InnerUse::Beside);
    own.device.launch(own.compute, [] {});
    const auto send = world.issue(rank, rank, InnerUse::Beside, [&own](StreamDriver::Stream stream) {
      own.device.launch(stream, [] {});  // the copy to the host
    });
    own.wait(send);
    own.wait(receive);
    own.device.launch(own.compute, [] {});
  }
  return world.run();
}

TEST(StreamOrder, test_streams_receive_before_send_ends_even_where_all_streams_share_a_queue) {
  EXPECT_TRUE(receive_before_send_ends(1, Close::AtUse));
  EXPECT_TRUE(receive_before_send_ends(8, Close::AtUse));
  EXPECT_TRUE(receive_before_send_ends(8, Close::AtIssue));
  // The model shows what it is to show: gates that close at issue hold up the send's data on both ranks.
  EXPECT_FALSE(receive_before_send_ends(1, Close::AtIssue));
}

// What DDP does, but that it waits at the end: whether the second bucket is computed under the first's
// exchange.
bool computes_under_an_exchange(Close close) {
  ModelWorld world(1, 1, close);
  auto& own = world.rank(0);
  bool computed = false;
  const auto bucket = world.issue(0, 0, InnerUse::FirstAndLast);
  own.device.launch(own.compute, [&] { computed = true; });
  world.run(2);  // the other rank never comes
  return computed;
}

TEST(StreamOrder, test_streams_compute_goes_on_under_an_exchange_that_nobody_waits_for_yet) {
  EXPECT_TRUE(computes_under_an_exchange(Close::AtUse));
  EXPECT_FALSE(computes_under_an_exchange(Close::AtIssue));
}

// Backward with twenty buckets over eight queues, of which the program takes the Futures, as DDP does: how
// much of it is computed before the first bucket has crossed. `inner` says whether a Future has to be a use.
int computed_under_futures(InnerUse inner) {
  constexpr int kBuckets = 20;
  ModelWorld world(1, 8, Close::AtUse);
  auto& own = world.rank(0);
  std::vector<StreamDriver::Stream> computes;  // torch's, and those of a library
  for (int i = 0; i < 4; ++i) computes.push_back(own.device.create_stream());
  int computed = 0;
  std::vector<OperationPtr> buckets;
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    for (const auto compute : computes) own.device.launch(compute, [&] { ++computed; });
    buckets.push_back(world.issue(0, bucket, inner));
    if (inner == InnerUse::FirstAndLast) own.order.use(buckets.back());
  }
  world.run(2);  // the other rank is far away
  const int before = computed;
  for (const OperationPtr& bucket : buckets) {
    bucket->open();
    own.order.enqueue_unused(bucket);
  }
  EXPECT_TRUE(world.run(2));
  EXPECT_EQ(computed, kBuckets * 4);
  return before;
}

TEST(StreamOrder, test_streams_compute_goes_on_under_futures_of_operations_that_end_unused) {
  EXPECT_EQ(computed_under_futures(InnerUse::First), 80);
  // Where the last stage is the site's, gates close at once.
  EXPECT_LT(computed_under_futures(InnerUse::FirstAndLast), 40);
}

TEST(StreamOrder, test_streams_operations_that_nobody_uses_end_where_the_site_is_not_concerned) {
  ModelWorld world(2, 1, Close::AtUse);
  std::vector<OperationPtr> operations;
  for (const int rank : {0, 1}) {
    operations.push_back(world.issue(rank, 0, InnerUse::First));
    operations.push_back(world.issue(rank, 1, InnerUse::Beside));
    operations.push_back(world.issue(rank, 2, InnerUse::FirstAndLast));
    operations.push_back(world.issue(rank, 3, InnerUse::First));
  }
  ASSERT_TRUE(world.run());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    EXPECT_EQ(operations[i]->is_finished(), i % 4 != 2) << i;
  }
  for (const int rank : {0, 1}) world.rank(rank).order.use_all();  // the end of the group
  ASSERT_TRUE(world.run());
  for (const auto& operation : operations) {
    EXPECT_TRUE(operation->is_finished());
    EXPECT_EQ(end_of(operation), nullptr);
  }
}

TEST(StreamOrder, test_streams_waits_in_another_order_than_issue_keep_the_last_stages_in_order) {
  ModelWorld world(2, 1, Close::AtUse);
  std::vector<std::vector<int>> posts(2);
  for (const int rank : {0, 1}) {
    auto& own = world.rank(rank);
    std::vector<OperationPtr> operations;
    for (const int number : {0, 1, 2, 3}) {
      operations.push_back(world.issue(rank, number, InnerUse::FirstAndLast, nullptr,
                                       [&posts, rank, number](StreamDriver::Stream) {
                                         posts[static_cast<std::size_t>(rank)].push_back(number);
                                       }));
    }
    const std::vector<std::size_t> waits =
        rank == 0 ? std::vector<std::size_t>{2, 0, 3, 1} : std::vector<std::size_t>{0, 1, 2, 3};
    for (const std::size_t i : waits) own.wait(operations[i]);
    own.device.launch(own.compute, [] {});
  }
  EXPECT_EQ(posts[0], (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(posts[1], posts[0]);
  EXPECT_TRUE(world.run());
}

// A kernel of NCCL's: all ranks of the site have to run it at once.
class InnerKernels {
 public:
  void launch(ModelRank& rank, StreamDriver::Stream stream, const std::string& name) {
    rank.device.launch(stream, [this, name] { ++began_[name]; }, [this, name] { return began_[name] == 2; });
    rank.device.launch(stream, [] {});  // what works on its result
  }

 private:
  std::map<std::string, int> began_;
};

// Two ranks of one site, operations 0 and 1. The site's rank 1 issues the second one before its exchange 0
// ends. `by_timing`: the last stage is enqueued when the exchange is over, as if nobody else were concerned.
bool inner_stages_end(bool by_timing) {
  ModelWorld world(2, 1, Close::AtUse);
  InnerKernels kernels;
  std::vector<OperationPtr> first;
  const auto issue = [&](int rank, int number) {
    auto& own = world.rank(rank);
    const std::string name = std::to_string(number);
    return own.issue(
        by_timing ? InnerUse::First : InnerUse::FirstAndLast,
        [&, name](StreamDriver::Stream stream) { kernels.launch(own, stream, "pre " + name); },
        [&, name](StreamDriver::Stream stream) { kernels.launch(own, stream, "post " + name); });
  };
  for (const int rank : {0, 1}) first.push_back(issue(rank, 0));
  world.run();
  std::vector<OperationPtr> second;
  const auto exchange_ends = [&](int rank) {
    first[static_cast<std::size_t>(rank)]->open();
    world.rank(rank).order.enqueue_unused(first[static_cast<std::size_t>(rank)]);
  };
  exchange_ends(0);
  second.push_back(issue(0, 1));
  second.push_back(issue(1, 1));
  exchange_ends(1);
  for (const int rank : {0, 1}) {
    second[static_cast<std::size_t>(rank)]->open();
    world.rank(rank).wait(first[static_cast<std::size_t>(rank)]);
    world.rank(rank).wait(second[static_cast<std::size_t>(rank)]);
  }
  return world.run();
}

TEST(StreamOrder, test_streams_last_stages_inside_a_site_are_enqueued_by_the_program_and_not_by_chance) {
  EXPECT_TRUE(inner_stages_end(false));
  // Were they not: one rank of the site has `post 0` before `pre 1`, the other one behind it.
  EXPECT_FALSE(inner_stages_end(true));
}

}  // namespace
}  // namespace geocomm::binding
