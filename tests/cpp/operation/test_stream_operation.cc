// One operation on a stream: its stages, gates, groups and pieces, its end and its failures.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "binding/operation/piece_prefix.h"
#include "core/executor.h"
#include "stream_model.h"

namespace geocomm::binding {
namespace {

using core::Deadline;
using namespace std::chrono_literals;  // NOLINT

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
      StreamOperation::current()->set_pieces(
          {kGroups, [&, stream](std::uint32_t group) { kernel(stream, "make ", group); }, nullptr});
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

TEST_F(StreamOperationTest, test_stream_operation_without_pinned_memory_copies_back_what_has_come) {
  std::atomic<int> there{0};  // what the exchange leaves
  int read = 0;
  bool next_is_issued = false;
  const auto operation = rank_.issue(
      InnerUse::FirstAndLast, [](StreamDriver::Stream) { StreamOperation::current()->wait_for_exchange(); },
      [&](StreamDriver::Stream) { read = there; });  // when it is enqueued, as a driver reads such memory
  const auto after = rank_.issue(InnerUse::First);
  rank_.device.advance();
  std::thread exchange([&] {
    std::this_thread::sleep_for(5ms);
    rank_.issue(InnerUse::First);  // nobody is in its way
    next_is_issued = true;
    EXPECT_TRUE(operation
                    ->run(
                        [&] {
                          there = 7;
                          return Status::ok();
                        },
                        soon(), working)
                    .is_ok());
  });
  rank_.order.use(after);
  exchange.join();
  EXPECT_EQ(read, 7);
  EXPECT_TRUE(next_is_issued);
  EXPECT_TRUE(operation->is_enqueued());
  rank_.device.advance();
  EXPECT_EQ(end_of(operation), nullptr);
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
          StreamOperation::current()->set_pieces(
              {kPieces,
               [&, stream](std::uint32_t i) {
                 // A copy that takes until the piece before has crossed.
                 rank_.device.launch(stream, [] {}, [&, i] { return i <= exchanged; });
               },
               [&, stream](std::uint32_t i) { rank_.device.launch(stream, [&, i] { back.push_back(i); }); }});
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
        const auto operation = StreamOperation::create(
            {}, soon(), rank_.group, std::make_shared<StreamLease>(rank_.streams, soon()), InnerUse::First,
            [](const std::function<void()>& run) { run(); });
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
