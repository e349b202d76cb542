#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "binding/operation/piece_prefix.h"
#include "binding/operation/stream_operation.h"
#include "core/executor.h"
#include "device_model.h"

namespace geocomm::binding {
namespace {

using core::Deadline;
using core::Status;
using core::StatusCode;
using namespace std::chrono_literals;  // NOLINT
using OperationPtr = std::shared_ptr<StreamOperation>;

struct StatusError : std::runtime_error {
  explicit StatusError(const Status& status) : std::runtime_error(status.to_string()), code(status.code()) {}
  StatusCode code;
};

StatusCode code_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const StatusError& e) {
    return e.code;
  } catch (const std::exception&) {
    return StatusCode::Internal;
  }
  return StatusCode::Ok;
}

std::exception_ptr end_of(const OperationPtr& operation) {
  operation->end();
  return operation->error();
}

struct ModelGroup final : OperationGroup {
  Status failure() const override { return Status::ok(); }
  void failed(const std::exception_ptr&) override { ++failures; }
  std::exception_ptr to_exception(Status status, const OperationId&) const override {
    return std::make_exception_ptr(StatusError(status));
  }
  std::exception_ptr named(const std::exception_ptr& error, const OperationId&) const override {
    return error;
  }
  std::atomic<int> failures{0};
};

// What a rank has: its device, its place in a group, and a stream that its program computes on.
struct ModelRank {
  explicit ModelRank(std::size_t queues) : device(queues) {}

  // As the program does: behind what the stream `compute` holds.
  OperationPtr issue(
      InnerUse inner, std::function<void(StreamDriver::Stream)> pre = nullptr,
      std::function<void(StreamDriver::Stream)> post = nullptr, const std::function<void()>& submit = [] {}) {
    const auto operation =
        StreamOperation::create({}, core::Deadline::after(20s), group, std::make_shared<StreamLease>(streams),
                                inner, [](const std::function<void()>& run) { run(); });
    const auto stream = operation->stream();
    Steps steps;
    steps.pre = [this, stream, pre = std::move(pre)] {
      device.wait(stream, device.record(compute));
      if (pre) pre(stream);
    };
    if (post) steps.post = [stream, post = std::move(post)] { post(stream); };
    operation->set_steps(std::move(steps));
    const auto event = std::make_shared<DeviceModel::Event>();
    operation->when_enqueued(
        [this, stream, event](const std::exception_ptr&) { *event = device.record(stream); });
    finished[operation.get()] = event;
    order.issue(operation, submit);
    return operation;
  }
  // Work::wait(): the host goes on, the stream `compute` waits.
  void wait(const OperationPtr& operation) {
    order.use(operation);
    device.wait(compute, *finished.at(operation.get()));
  }

  DeviceModel device;
  DeviceStreams streams{device};
  EnqueueOrder order;
  StreamDriver::Stream compute = device.create_stream();
  const std::shared_ptr<ModelGroup> group = std::make_shared<ModelGroup>();
  std::map<StreamOperation*, std::shared_ptr<DeviceModel::Event>> finished;
};

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

class StreamOperationTest : public ::testing::Test {
 protected:
  Deadline soon() const { return Deadline::after(20s); }
  static Status working() { return Status::ok(); }

  ModelRank rank_{1};
};

TEST_F(StreamOperationTest, test_stream_operation_middle_without_any_use_is_enqueued_by_the_exchange) {
  bool summed = false;
  const auto operation = rank_.issue(InnerUse::FirstAndLast, [&](StreamDriver::Stream stream) {
    StreamOperation::current()->set_middle(
        {1, [&, stream](std::uint32_t) { rank_.device.launch(stream, [&] { summed = true; }); }});
  });
  rank_.device.advance();
  ASSERT_TRUE(operation->is_ready());
  operation->open_arrived(1);
  operation->enqueue_middle_if_due(1);
  rank_.device.advance();
  EXPECT_TRUE(summed);
  EXPECT_TRUE(operation->is_made(1));
  EXPECT_FALSE(operation->is_enqueued());
}

TEST_F(StreamOperationTest, test_stream_operation_middle_of_a_used_one_waits_for_what_arrives_and_runs_once) {
  int sums = 0;
  bool posted = false;
  const auto operation = rank_.issue(
      InnerUse::First,
      [&](StreamDriver::Stream stream) {
        StreamOperation::current()->set_middle(
            {1, [&, stream](std::uint32_t) { rank_.device.launch(stream, [&] { ++sums; }); }});
      },
      [&](StreamDriver::Stream stream) { rank_.device.launch(stream, [&] { posted = true; }); });
  rank_.wait(operation);
  rank_.device.advance();
  EXPECT_EQ(sums, 0);
  operation->open_arrived(1);
  operation->enqueue_middle_if_due(1);
  rank_.device.advance();
  EXPECT_EQ(sums, 1);
  EXPECT_TRUE(operation->is_made(1));
  EXPECT_FALSE(posted);
  operation->open();
  rank_.device.advance();
  EXPECT_EQ(sums, 1);
  EXPECT_TRUE(posted);
  EXPECT_TRUE(rank_.device.is_idle());
}

// Three groups of frames, of which the other sites' come one by one: the device makes frames while those
// before are sent, and sums up what came while others are on their way.
TEST_F(StreamOperationTest, test_stream_operation_codes_groups_beside_the_exchange_of_others) {
  constexpr std::uint32_t kGroups = 3;
  for (const bool is_used : {true, false}) {
    std::vector<std::string> log;
    std::atomic<std::uint32_t> may_run = 1;  // kernels that the device gets done
    std::uint32_t ran = 0;
    const auto kernel = [&](StreamDriver::Stream stream, const char* what, std::uint32_t group) {
      rank_.device.launch(
          stream, [&, what, group] { log.push_back(what + std::to_string(group)); },
          [&, number = ++ran] { return number <= may_run; });
    };
    const auto operation = rank_.issue(InnerUse::First, [&](StreamDriver::Stream stream) {
      StreamOperation::current()->set_middle(
          {kGroups, [&, stream](std::uint32_t group) { kernel(stream, "sum ", group); }});
      ASSERT_TRUE(StreamOperation::current()->set_pieces(
          {kGroups, [&, stream](std::uint32_t group) { kernel(stream, "make ", group); }, nullptr}));
    });
    if (is_used) rank_.wait(operation);
    for (std::uint32_t group = 0; group < kGroups; ++group) {
      rank_.device.advance();
      const auto made = operation->wait_for_pieces(group + 1, Deadline::after(20s));
      ASSERT_TRUE(made.is_ok());
      EXPECT_EQ(*made, group + 1) << "the kernel of the next has begun, and is not done";
      log.push_back("send " + std::to_string(group));
      ++may_run;
    }
    may_run = 2 * kGroups;
    for (std::uint32_t group = 0; group < kGroups; ++group) {
      rank_.device.advance();
      EXPECT_FALSE(operation->is_made(group + 1)) << "nothing has come";
      log.push_back("come " + std::to_string(group));
      operation->open_arrived(group + 1);
      operation->enqueue_middle_if_due(group + 1);
      rank_.device.advance();
      EXPECT_TRUE(operation->is_made(group + 1));
    }
    operation->open();
    rank_.order.use(operation);
    while (rank_.device.advance()) {
    }
    EXPECT_TRUE(rank_.device.is_idle());
    EXPECT_EQ(log, (std::vector<std::string>{"make 0", "make 1", "send 0", "make 2", "send 1", "send 2",
                                             "come 0", "sum 0", "come 1", "sum 1", "come 2", "sum 2"}));
  }
}

TEST_F(StreamOperationTest, test_stream_operation_first_stage_throws_is_over_without_the_last) {
  bool posted = false;
  const auto operation = rank_.issue(
      InnerUse::First, [](StreamDriver::Stream) { throw std::runtime_error("inner backend"); },
      [&](StreamDriver::Stream) { posted = true; });
  EXPECT_EQ(StreamOperation::current(), nullptr);
  EXPECT_EQ(rank_.group->failures, 1);
  rank_.wait(operation);
  rank_.device.advance();
  EXPECT_TRUE(rank_.device.is_idle());
  EXPECT_FALSE(posted);
  EXPECT_EQ(code_of(end_of(operation)), StatusCode::Internal);
}

TEST_F(StreamOperationTest, test_stream_operation_exchange_that_cannot_be_submitted_leaves_nothing_current) {
  EXPECT_THROW(rank_.issue(InnerUse::First, nullptr, nullptr, [] { throw std::runtime_error("no threads"); }),
               std::runtime_error);
  EXPECT_EQ(StreamOperation::current(), nullptr);
  const auto next = rank_.issue(InnerUse::First);
  rank_.wait(next);
  rank_.device.advance();
  EXPECT_TRUE(next->is_finished());
}

TEST_F(StreamOperationTest, test_stream_operation_refused_by_the_driver_fails_and_stops_no_stream) {
  const auto operation = rank_.issue(InnerUse::First, nullptr, [](StreamDriver::Stream) {});
  rank_.device.refuses_waits = true;
  rank_.device.refuses_writes = true;
  rank_.wait(operation);
  rank_.device.refuses_waits = false;
  rank_.device.refuses_writes = false;
  rank_.device.advance();
  EXPECT_TRUE(rank_.device.is_idle());
  EXPECT_EQ(code_of(end_of(operation)), StatusCode::Driver);
}

TEST_F(StreamOperationTest, test_stream_operation_run_gives_up_with_its_group_or_at_its_deadline) {
  const auto stuck = rank_.issue(InnerUse::First);  // the device does not move
  bool exchanged = false;
  const auto exchange = [&] {
    exchanged = true;
    return Status::ok();
  };
  EXPECT_EQ(stuck->run(exchange, soon(), [] { return Status(StatusCode::PeerLost, "gone"); }).code(),
            StatusCode::PeerLost);
  EXPECT_EQ(stuck->run(exchange, Deadline::after(5ms), working).code(), StatusCode::Timeout);
  EXPECT_FALSE(exchanged);
}

TEST_F(StreamOperationTest, test_stream_operation_exchange_that_throws_opens_the_gates_all_the_same) {
  const auto operation = rank_.issue(InnerUse::First, nullptr, [](StreamDriver::Stream) {});
  rank_.order.use(operation);
  rank_.device.advance();
  const Status status =
      operation->run([]() -> Status { throw std::runtime_error("no memory left"); }, soon(), working);
  EXPECT_EQ(status.code(), StatusCode::Internal) << status.to_string();
  rank_.device.advance();
  EXPECT_TRUE(operation->is_finished());
}

TEST_F(StreamOperationTest, test_stream_operation_on_a_broken_device_ends_with_the_driver_s_error) {
  const auto operation = rank_.issue(InnerUse::First);
  rank_.order.use(operation);
  rank_.device.is_broken = true;
  EXPECT_EQ(code_of(end_of(operation)), StatusCode::Driver);
}

TEST_F(StreamOperationTest, test_stream_signal_let_go_before_it_was_given_does_not_disturb_the_next) {
  for (int i = 0; i < 3; ++i) {  // their words are still to be written
    auto signal = StreamSignal::create(rank_.streams);
    ASSERT_TRUE(signal->enqueue(rank_.compute));
  }
  std::vector<std::unique_ptr<StreamSignal>> later;
  const auto stream = rank_.device.create_stream();
  for (int i = 0; i < 300; ++i) {
    later.push_back(StreamSignal::create(rank_.streams));
    ASSERT_TRUE(later.back()->enqueue(stream));
    EXPECT_FALSE(later.back()->is_given());
  }
  rank_.device.advance();
  for (const auto& signal : later) EXPECT_TRUE(signal->is_given());
}

TEST_F(StreamOperationTest, test_stream_lease_of_ended_operations_serves_the_next_one) {
  std::set<StreamDriver::Stream> used;
  for (int i = 0; i < 20; ++i) {
    const auto operation = rank_.issue(InnerUse::First);
    used.insert(operation->stream());
    rank_.order.use(operation);
    rank_.device.advance();
    EXPECT_EQ(end_of(operation), nullptr);
  }
  EXPECT_EQ(used.size(), 1u);
}

// Three pieces. The device gets no further than the exchange lets it: a piece is exchanged while the next one
// is on its way to the host, and goes back while the next one is exchanged.
TEST_F(StreamOperationTest, test_stream_operation_copies_pieces_beside_the_exchange_of_others) {
  for (const bool is_used_first : {true, false}) {
    constexpr std::uint32_t kPieces = 3;
    std::uint32_t exchanged = 0;
    std::vector<std::uint32_t> back;
    bool posted = false;
    const auto operation = rank_.issue(
        InnerUse::First,
        [&](StreamDriver::Stream stream) {
          ASSERT_TRUE(StreamOperation::current()->set_pieces(
              {kPieces,
               [&, stream](std::uint32_t i) {
                 // A copy that takes until the piece before has crossed.
                 rank_.device.launch(stream, [] {}, [&, i] { return i <= exchanged; });
               },
               [&, stream](std::uint32_t i) {
                 rank_.device.launch(stream, [&, i] { back.push_back(i); });
               }}));
        },
        [&](StreamDriver::Stream stream) { rank_.device.launch(stream, [&] { posted = true; }); });
    if (is_used_first) rank_.order.use(operation);
    while (rank_.device.advance()) {
    }
    ASSERT_TRUE(operation->is_ready());
    EXPECT_EQ(operation->wait_for_pieces(2, Deadline::after(5ms)).status().code(), StatusCode::Timeout);
    while (exchanged < kPieces) {
      const auto there = operation->wait_for_pieces(exchanged + 1, soon());
      ASSERT_TRUE(there.is_ok());
      EXPECT_EQ(*there, exchanged + 1);
      operation->open_pieces(++exchanged);
      while (rank_.device.advance()) {
      }
      // Behind the last copy to the host: then two have crossed.
      EXPECT_EQ(back.size(), is_used_first && exchanged > 1 ? exchanged : 0u);
      EXPECT_FALSE(posted);
    }
    operation->open();
    rank_.order.use(operation);
    while (rank_.device.advance()) {
    }
    EXPECT_EQ(back, (std::vector<std::uint32_t>{0, 1, 2}));
    EXPECT_TRUE(posted);
    EXPECT_EQ(end_of(operation), nullptr);
  }
}

TEST_F(StreamOperationTest, test_stream_operation_pieces_go_back_one_by_one_behind_their_gates) {
  std::vector<std::uint32_t> back;
  const auto operation = rank_.issue(InnerUse::First, [&](StreamDriver::Stream stream) {
    StreamOperation::current()->set_pieces(
        {4, [](std::uint32_t) {},
         [&, stream](std::uint32_t i) { rank_.device.launch(stream, [&, i] { back.push_back(i); }); }});
  });
  rank_.order.use(operation);
  PiecePrefix prefix(1000, 300);  // the last one is short
  EXPECT_EQ(prefix.pieces(), 4u);
  EXPECT_EQ(prefix.pieces_that_hold(301), 2u);
  EXPECT_EQ(prefix.bytes_of(4), 1000u);
  const std::vector<std::pair<std::size_t, std::size_t>> ranges{
      {300, 650}, {0, 299}, {299, 300}, {650, 1000}};
  const std::vector<std::size_t> whole{0, 0, 2, 4};
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::uint32_t now = prefix.add(ranges[i].first, ranges[i].second);
    EXPECT_EQ(now, whole[i]);
    if (now > 0) operation->open_pieces(now);
    while (rank_.device.advance()) {
    }
    EXPECT_EQ(back.size(), whole[i]);
  }
  operation->open_pieces(1);  // late: no gate closes again
  EXPECT_EQ(end_of(operation), nullptr);
}

// What completes a Future: behind open gates, on a thread that may block and holds no lock, with what has
// failed.
TEST_F(StreamOperationTest, test_stream_operation_unused_tells_once_its_exchange_is_over) {
  std::atomic<bool> stop{false};
  std::thread device([&] {
    while (!stop) {
      if (!rank_.device.advance()) std::this_thread::sleep_for(50us);
    }
  });
  {
    core::GrowingExecutor executor("test");
    HostLane host(executor);
    StreamLane lane(host);
    for (const bool fails : {false, true}) {
      const auto issue = [&](std::function<Status()> exchange, StreamOperation::Told over) {
        const auto operation =
            StreamOperation::create({}, soon(), rank_.group, std::make_shared<StreamLease>(rank_.streams),
                                    InnerUse::First, [](const std::function<void()>& run) { run(); });
        operation->set_steps({nullptr, std::move(exchange), [] {}});
        operation->when_over(std::move(over));
        const auto done = std::make_shared<std::promise<void>>();
        operation->on_done([done](const std::exception_ptr&) { done->set_value(); });
        lane.submit(operation, Runs::InOrder);
        return std::pair(operation, done);
      };
      std::promise<void> crossed;
      std::atomic<bool> told{false};
      std::exception_ptr what;
      OperationPtr chained;
      const auto [operation, done] = issue(
          [&] {
            crossed.get_future().wait();
            return fails ? Status(StatusCode::PeerLost, "gone") : Status::ok();
          },
          [&](const std::exception_ptr& error) {
            what = error;
            told = true;
            // A hook goes on with another collective, and uses it.
            if (error) return;
            chained = issue(nullptr, [](const std::exception_ptr&) {}).first;
            chained->use();
            lane.use_all();
          });
      std::this_thread::sleep_for(5ms);
      EXPECT_FALSE(told);
      EXPECT_FALSE(operation->is_enqueued());
      crossed.set_value();
      ASSERT_EQ(done->get_future().wait_for(60s), std::future_status::ready);
      EXPECT_TRUE(told);
      EXPECT_EQ(code_of(what), fails ? StatusCode::PeerLost : StatusCode::Ok);
      EXPECT_EQ(chained != nullptr, !fails);
    }
  }  // waits for the tasks
  stop = true;
  device.join();
}

// Frames of 3 MB an operation, of which four are under way at once.
TEST(StreamMemory, test_pinned_memory_serves_again_and_goes_back_once_it_lies_idle) {
  DeviceModel device(2);
  constexpr std::size_t kFrames = 3'000'000;
  std::size_t words = 0;
  {
    DeviceStreams streams(device, 20ms);
    EXPECT_NE(streams.take_word().address, nullptr);
    words = device.pinned_bytes();
    for (int round = 0; round < 5; ++round) {
      std::vector<std::unique_ptr<StreamLease>> leases;
      std::vector<core::Buffer> frames;
      for (int i = 0; i < 4; ++i) {
        leases.push_back(std::make_unique<StreamLease>(streams));
        frames.push_back(streams.pinned().acquire(kFrames));
      }
      EXPECT_LE(device.pinned_bytes() - words, 4 * (kFrames + kFrames / 8));
    }
    // A kernel is under way on the stream of an operation: what is idle must wait for that.
    auto lease = std::make_unique<StreamLease>(streams);
    bool passed = false;
    device.launch(lease->stream(), nullptr);
    std::this_thread::sleep_for(100ms);
    EXPECT_GE(device.pinned_bytes() - words, 4 * kFrames);
    EXPECT_EQ(device.freed_under_work, 0);
    device.advance();
    lease.reset();
    for (int i = 0; i < 2000 && !passed; ++i) {
      passed = device.pinned_bytes() == words;
      std::this_thread::sleep_for(10ms);
    }
    EXPECT_TRUE(passed) << device.pinned_bytes() - words << " bytes stay pinned";
    EXPECT_EQ(device.freed_under_work, 0);
    // And again: the memory comes back.
    EXPECT_EQ(streams.pinned().acquire(kFrames).size(), 0u);
    device.most_pinned = device.pinned_bytes();
    EXPECT_THROW(streams.pinned().acquire(20 * kFrames), std::bad_alloc);
  }
  EXPECT_EQ(device.pinned_bytes(), words);  // words stay: a stream may still write to them
}

// Real threads: a device that moves by itself, exchanges on an executor, a program that waits for some
// operations in any order, while others are settled.
TEST_F(StreamOperationTest, test_stream_operations_of_many_threads_all_end_once) {
  constexpr int kOperations = 300;
  std::atomic<bool> stop{false};
  std::thread device([&] {
    while (!stop) {
      if (!rank_.device.advance()) std::this_thread::sleep_for(50us);
    }
  });
  std::atomic<int> posts{0}, sums{0}, ended{0};
  {
    core::GrowingExecutor executor("test");
    std::vector<OperationPtr> operations;
    for (int i = 0; i < kOperations; ++i) {
      const auto inner = i % 3 == 0   ? InnerUse::Beside
                         : i % 3 == 1 ? InnerUse::First
                                      : InnerUse::FirstAndLast;
      const auto handed = std::make_shared<std::promise<OperationPtr>>();
      const auto submit = [&, i, handed] {
        executor.post([&, i, handed] {
          const OperationPtr operation = handed->get_future().get();
          const auto exchange = [&] {
            std::this_thread::sleep_for(std::chrono::microseconds(i * 37 % 300));
            operation->open_arrived(1 + static_cast<std::uint32_t>(i % 2));
            const Status status = operation->wait_until_made(1, soon());
            operation->open_arrived(2);
            return status.is_ok() ? operation->wait_until_made(2, soon()) : status;
          };
          EXPECT_TRUE(operation->run(exchange, soon(), working).is_ok());
          EXPECT_TRUE(rank_.order.enqueue_unused(operation) || operation->wait_until_enqueued(soon()));
          rank_.order.use(operation);
          EXPECT_EQ(end_of(operation), nullptr);
          ++ended;
        });
      };
      operations.push_back(rank_.issue(
          inner,
          [&](StreamDriver::Stream stream) {
            StreamOperation::current()->set_middle(
                {2, [&, stream](std::uint32_t) { rank_.device.launch(stream, [&] { ++sums; }); }});
          },
          [&](StreamDriver::Stream stream) { rank_.device.launch(stream, [&] { ++posts; }); }, submit));
      handed->set_value(operations.back());
      if (i % 7 == 6) rank_.order.use(operations[static_cast<std::size_t>(i - i % 5)]);
    }
    rank_.order.use_all();
  }  // waits for the tasks
  stop = true;
  device.join();
  EXPECT_EQ(ended, kOperations);
  EXPECT_EQ(posts, kOperations);
  EXPECT_EQ(sums, 2 * kOperations);
}

}  // namespace
}  // namespace geocomm::binding
