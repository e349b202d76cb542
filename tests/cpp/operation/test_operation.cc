// An operation's ways in and out, whatever its lane: who runs what, and when what it holds is let go.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "binding/operation/host_lane.h"
#include "binding/operation/operation.h"
#include "binding/operation/stream_operation.h"
#include "device_model.h"

namespace geocomm::binding {
namespace {

using core::Deadline;
using core::Status;
using core::StatusCode;
using namespace std::chrono_literals;  // NOLINT

constexpr auto kPatience = 20s;

std::string text_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

// Names errors, and counts them.
struct NamingGroup final : OperationGroup {
  Status failure() const override { return Status::ok(); }
  void failed(const std::exception_ptr&) override { ++failures; }
  std::exception_ptr to_exception(Status status, const OperationId&) const override {
    return std::make_exception_ptr(std::runtime_error(status.message()));
  }
  std::exception_ptr named(const std::exception_ptr& error, const OperationId& id) const override {
    return std::make_exception_ptr(
        std::runtime_error(id.title + " " + std::to_string(id.seq) + ": " + text_of(error)));
  }
  std::atomic<int> failures{0};
};

// An operation, and what it ends with.
template <typename Kind>
struct Given {
  std::shared_ptr<Kind> operation;
  std::shared_ptr<std::promise<std::string>> done = std::make_shared<std::promise<std::string>>();
  std::thread::id done_on;

  std::string outcome() {
    auto future = done->get_future();
    return future.wait_for(kPatience) == std::future_status::ready ? future.get() : "not done";
  }
};

class OperationTest : public ::testing::Test {
 protected:
  std::shared_ptr<Given<Operation>> give(std::function<Status()> exchange,
                                         Deadline deadline = Deadline::after(kPatience)) {
    auto given = std::make_shared<Given<Operation>>();
    given->operation = std::make_shared<Operation>(OperationId{"send", 7}, deadline, group_);
    given->operation->set_steps({nullptr, std::move(exchange), nullptr});
    given->operation->on_done([given](const std::exception_ptr& error) {
      given->done_on = std::this_thread::get_id();
      given->done->set_value(text_of(error));
    });
    return given;
  }
  static void wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Deadline deadline,
                   const std::function<bool()>& is_over) {
    changed.wait_until(lock, deadline.when(), is_over);
  }

  const std::shared_ptr<NamingGroup> group_ = std::make_shared<NamingGroup>();
  core::GrowingExecutor executor_{"test"};
  HostLane lane_{executor_, 4};
};

TEST_F(OperationTest, test_operation_on_the_waiter_that_waits_before_it_is_over_runs_there) {
  std::thread::id ran_on;
  std::promise<void> waits;
  const auto given = give([&] {
    ran_on = std::this_thread::get_id();
    return Status::ok();
  });
  lane_.submit(given->operation, Runs::OnWaiter);
  std::thread network([&, share = given->operation]() mutable {
    waits.get_future().wait();
    Operation::over(std::move(share));
  });
  given->operation->run_once_over([&](auto& lock, auto& changed, Deadline deadline, const auto& is_over) {
    waits.set_value();  // with the lock held: over() comes once this thread waits
    wait(lock, changed, deadline, is_over);
  });
  network.join();
  EXPECT_EQ(given->outcome(), "");
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_EQ(given->done_on, ran_on);
}

TEST_F(OperationTest, test_operation_on_the_waiter_that_nobody_waits_for_is_ended_once_it_is_over) {
  const auto given = give([] { return Status(StatusCode::PeerLost, "gone"); });
  lane_.submit(given->operation, Runs::OnWaiter);
  Operation::over(given->operation);
  EXPECT_EQ(given->outcome(), "send 7: gone");
  EXPECT_EQ(group_->failures, 1);
}

TEST_F(OperationTest, test_operation_on_the_waiter_that_is_over_before_it_is_submitted_is_ended) {
  const auto given = give([] { return Status::ok(); });
  Operation::over(given->operation);
  lane_.submit(given->operation, Runs::OnWaiter);
  EXPECT_EQ(given->outcome(), "");
}

TEST_F(OperationTest, test_operation_on_the_waiter_whose_waiter_is_interrupted_is_ended_by_another) {
  const auto given = give([] { return Status::ok(); });
  lane_.submit(given->operation, Runs::OnWaiter);
  EXPECT_THROW(given->operation->run_once_over([&](auto& lock, auto&, Deadline, const auto&) {
    lock.unlock();
    Operation::over(given->operation);  // for a waiter
    lock.lock();
    throw std::runtime_error("interrupted");
  }),
               std::runtime_error);
  EXPECT_EQ(given->outcome(), "");
}

TEST_F(OperationTest, test_operation_on_the_waiter_runs_at_its_deadline_whether_it_is_over_or_not) {
  const auto given = give([] { return Status(StatusCode::Timeout, "late"); }, Deadline::after(1ms));
  lane_.submit(given->operation, Runs::OnWaiter);
  given->operation->run_once_over(wait);
  EXPECT_EQ(given->outcome(), "send 7: late");
}

TEST_F(OperationTest, test_operation_that_many_wait_for_is_ended_once) {
  std::atomic<int> runs{0};
  const auto given = give([&] {
    ++runs;
    return Status::ok();
  });
  lane_.submit(given->operation, Runs::OnWaiter);
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) waiters.emplace_back([&] { given->operation->run_once_over(wait); });
  Operation::over(given->operation);
  for (auto& waiter : waiters) waiter.join();
  EXPECT_EQ(given->outcome(), "");
  EXPECT_EQ(runs, 1);
}

// Set when it is let go, and where.
struct Trace {
  std::atomic<bool> gone{false};
  std::thread::id on;
  std::shared_ptr<int> held() {
    return {new int(0), [this](int* freed) {
              delete freed;
              on = std::this_thread::get_id();
              gone = true;
            }};
  }
};

TEST_F(OperationTest, test_operation_lets_go_of_what_its_steps_hold_before_it_is_done) {
  for (const Runs runs : {Runs::InOrder, Runs::Beside, Runs::OnWaiter}) {
    Trace pre, exchange, post;
    const auto freed = std::make_shared<std::promise<bool>>();
    const auto given = std::make_shared<Operation>(OperationId{}, Deadline::after(kPatience), group_);
    given->set_steps(
        {[held = pre.held()] {}, [held = exchange.held()] { return Status::ok(); }, [held = post.held()] {}});
    given->on_done(
        [&, freed](const std::exception_ptr&) { freed->set_value(pre.gone && exchange.gone && post.gone); });
    lane_.submit(given, runs);
    Operation::over(given);
    EXPECT_TRUE(freed->get_future().get()) << static_cast<int>(runs);
  }
}

TEST_F(OperationTest, test_operation_is_not_let_go_by_the_thread_that_says_it_is_over) {
  Trace steps, done;
  std::thread network;
  {
    auto given = std::make_shared<Operation>(OperationId{}, Deadline::after(kPatience), group_);
    given->set_steps({nullptr, [held = steps.held()] { return Status::ok(); }, nullptr});
    given->on_done([held = done.held()](const std::exception_ptr&) {});
    lane_.submit(given, Runs::OnWaiter);
    network = std::thread([last = std::move(given)]() mutable { Operation::over(std::move(last)); });
  }
  const auto network_id = network.get_id();
  network.join();
  while (!done.gone) std::this_thread::yield();
  EXPECT_NE(steps.on, network_id);
  EXPECT_NE(done.on, network_id);
}

TEST_F(OperationTest, test_operation_beside_others_fails_its_group_and_not_its_lane) {
  const auto given = give([]() -> Status { throw std::runtime_error("no memory"); });
  lane_.submit(given->operation, Runs::Beside);
  EXPECT_EQ(given->outcome(), "send 7: no memory");
  EXPECT_EQ(group_->failures, 1);
  const auto next = give([] { return Status::ok(); });
  lane_.submit(next->operation, Runs::InOrder);
  EXPECT_EQ(next->outcome(), "");
}

// The whole way of an operation on a stream, in its lane.
class StreamLaneTest : public OperationTest {
 protected:
  StreamLaneTest()
      : device_thread_([this] {
          while (!stop_) {
            if (!device_.advance()) std::this_thread::sleep_for(50us);
          }
        }) {}
  ~StreamLaneTest() override {
    stop_ = true;
    device_thread_.join();
  }
  std::shared_ptr<Given<StreamOperation>> give(InnerUse inner, Steps steps) {
    auto given = std::make_shared<Given<StreamOperation>>();
    const auto late = Deadline::after(kPatience);
    given->operation = StreamOperation::create({"all_reduce", 3}, late, group_,
                                               std::make_shared<StreamLease>(streams_, late), inner,
                                               [](const std::function<void()>& run) { run(); });
    given->operation->set_steps(std::move(steps));
    given->operation->on_done(
        [given](const std::exception_ptr& error) { given->done->set_value(text_of(error)); });
    return given;
  }

  DeviceModel device_{1};
  DeviceStreams streams_{device_};
  StreamLane stream_lane_{lane_};
  std::atomic<bool> stop_{false};
  std::thread device_thread_;
};

TEST_F(StreamLaneTest, test_stream_lane_device_comes_to_the_last_step_after_the_exchange) {
  std::atomic<bool> exchanged{false}, seen{false};
  StreamDriver::Stream stream = nullptr;
  const auto given =
      give(InnerUse::FirstAndLast, {nullptr,
                                    [&] {
                                      std::this_thread::sleep_for(2ms);
                                      exchanged = true;
                                      return Status::ok();
                                    },
                                    [&] { device_.launch(stream, [&] { seen = exchanged.load(); }); }});
  stream = given->operation->stream();
  stream_lane_.submit(given->operation, Runs::InOrder);
  given->operation->use();
  EXPECT_EQ(given->outcome(), "");
  EXPECT_TRUE(seen);
  EXPECT_TRUE(lane_.wait_idle(Deadline::after(kPatience)));
}

TEST_F(StreamLaneTest, test_stream_lane_ends_an_operation_that_nobody_uses) {
  const auto given = give(InnerUse::First, {nullptr, [] { return Status::ok(); }, nullptr});
  stream_lane_.submit(given->operation, Runs::InOrder);
  EXPECT_EQ(given->outcome(), "");
}

TEST_F(StreamLaneTest, test_stream_lane_first_step_throws_skips_the_exchange_and_names_the_error) {
  bool exchanged = false;
  const auto given = give(InnerUse::First, {[] { throw std::runtime_error("inner"); },
                                            [&] {
                                              exchanged = true;
                                              return Status::ok();
                                            },
                                            nullptr});
  stream_lane_.submit(given->operation, Runs::InOrder);
  EXPECT_EQ(given->outcome(), "all_reduce 3: inner");
  EXPECT_FALSE(exchanged);
  EXPECT_EQ(group_->failures, 1);
}

TEST_F(StreamLaneTest, test_stream_lane_failed_exchange_opens_the_gates_of_a_used_operation) {
  const auto given =
      give(InnerUse::FirstAndLast, {nullptr, [] { return Status(StatusCode::PeerLost, "gone"); }, [] {}});
  stream_lane_.submit(given->operation, Runs::Beside);
  given->operation->use();
  EXPECT_EQ(given->outcome(), "all_reduce 3: gone");
  EXPECT_TRUE(given->operation->is_finished());
}

}  // namespace
}  // namespace geocomm::binding
