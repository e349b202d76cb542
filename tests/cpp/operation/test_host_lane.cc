#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../no_more_threads.h"
#include "binding/operation/host_lane.h"

namespace geocomm::binding {
namespace {

using core::Status;
using core::StatusCode;
using namespace std::chrono_literals;  // NOLINT

std::exception_ptr as_exception(const Status& status) {
  return std::make_exception_ptr(std::runtime_error(status.to_string()));
}

// What the tests say of an operation.
struct StagedOperation {
  std::function<void()> pre;
  std::function<Status()> exchange;
  std::function<void()> post;
  std::function<std::exception_ptr(const Status&)> to_exception;
  std::function<void(std::exception_ptr)> done;
  bool may_keep_thread = false;
};

// A lane of operations in order, and their group: `on_failure` is called with the first that fails.
class StagePipeline {
 public:
  StagePipeline(core::GrowingExecutor& executor, std::size_t most_exchanges,
                std::function<void(std::exception_ptr)> on_failure)
      : lane_(executor, most_exchanges), group_(std::make_shared<Group>(std::move(on_failure))) {}

  void submit(StagedOperation staged) {
    const auto operation =
        std::make_shared<Operation>(OperationId{}, core::Deadline::after(std::chrono::seconds(20)), group_);
    operation->set_steps({std::move(staged.pre), std::move(staged.exchange), std::move(staged.post)});
    operation->on_done(std::move(staged.done));
    operation->may_keep_thread(staged.may_keep_thread);
    lane_.submit(operation, Runs::InOrder);
  }
  void fail(std::exception_ptr why) { lane_.fail(std::move(why)); }
  bool wait_idle(core::Deadline deadline) { return lane_.wait_idle(deadline); }

 private:
  struct Group final : OperationGroup {
    explicit Group(std::function<void(std::exception_ptr)> on) : on_failure(std::move(on)) {}
    Status failure() const override { return Status::ok(); }
    void failed(const std::exception_ptr& error) override { on_failure(error); }
    std::exception_ptr to_exception(Status status, const OperationId&) const override {
      return as_exception(status);
    }
    std::exception_ptr named(const std::exception_ptr& error, const OperationId&) const override {
      return error;
    }
    const std::function<void(std::exception_ptr)> on_failure;
  };
  HostLane lane_;
  const std::shared_ptr<Group> group_;
};

// Records what ran, in order.
class Log {
 public:
  void add(const std::string& line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(line);
  }
  std::vector<std::string> lines() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  std::vector<std::string> lines_with(const std::string& prefix) const {
    std::vector<std::string> found;
    for (const auto& line : lines()) {
      if (line.starts_with(prefix)) found.push_back(line);
    }
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

class StagePipelineTest : public ::testing::Test {
 protected:
  StagedOperation operation(int index, std::function<Status()> exchange) {
    StagedOperation op;
    const auto name = std::to_string(index);
    op.pre = [this, name] { log_.add("pre " + name); };
    op.exchange = std::move(exchange);
    op.post = [this, name] { log_.add("post " + name); };
    op.to_exception = as_exception;
    op.done = [this, name](std::exception_ptr error) { log_.add((error ? "failed " : "done ") + name); };
    return op;
  }
  core::Deadline soon() const { return core::Deadline::after(20s); }

  Log log_;
  std::atomic<int> failures_{0};
  core::GrowingExecutor executor_{"test"};
  StagePipeline pipeline_{executor_, 4, [this](const std::exception_ptr&) { ++failures_; }};
};

TEST_F(StagePipelineTest, test_stages_exchanges_end_in_any_order_inner_stages_keep_the_order_of_issue) {
  std::promise<void> second_done;
  auto second = second_done.get_future().share();
  pipeline_.submit(operation(0, [second] {
    return second.wait_for(20s) == std::future_status::ready ? Status::ok()
                                                             : Status(StatusCode::Timeout, "0");
  }));
  pipeline_.submit(operation(1, [&] {
    second_done.set_value();  // ends first, while operation 0 is still on the WAN
    return Status::ok();
  }));
  pipeline_.submit(operation(2, [] { return Status::ok(); }));
  ASSERT_TRUE(pipeline_.wait_idle(soon()));
  EXPECT_EQ(log_.lines_with("pre"), (std::vector<std::string>{"pre 0", "pre 1", "pre 2"}));
  EXPECT_EQ(log_.lines_with("post"), (std::vector<std::string>{"post 0", "post 1", "post 2"}));
  EXPECT_EQ(log_.lines_with("done").size(), 3u);
  EXPECT_EQ(failures_, 0);
}

TEST_F(StagePipelineTest, test_stages_operation_alone_that_may_keeps_its_thread) {
  std::mutex mutex;
  std::vector<std::thread::id> threads;
  const auto note = [&] {
    std::lock_guard lock(mutex);
    threads.push_back(std::this_thread::get_id());
  };
  auto op = operation(0, [&] {
    note();
    return Status::ok();
  });
  op.may_keep_thread = true;
  op.pre = op.post = note;
  op.done = [&](std::exception_ptr) { note(); };
  pipeline_.submit(std::move(op));
  ASSERT_TRUE(pipeline_.wait_idle(soon()));
  EXPECT_EQ(threads, std::vector<std::thread::id>(4, threads.front()));
}

TEST_F(StagePipelineTest, test_exchange_that_throws_fails_its_operation_and_those_after_it) {
  auto op = operation(0, []() -> Status { throw std::runtime_error("no memory left"); });
  std::exception_ptr error;
  op.done = [&](std::exception_ptr why) { error = std::move(why); };
  pipeline_.submit(std::move(op));
  pipeline_.submit(operation(1, [] { return Status::ok(); }));
  ASSERT_TRUE(pipeline_.wait_idle(soon()));
  try {
    if (error) std::rethrow_exception(error);
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& why) {
    EXPECT_STREQ(why.what(), "Internal: no memory left");
  }
  EXPECT_EQ(log_.lines_with("failed"), std::vector<std::string>{"failed 1"});
  EXPECT_EQ(failures_, 1);
}

// Whatever meets on the way: one stage at a time, in order of issue.
TEST_F(StagePipelineTest,
       test_stages_of_many_operations_that_may_keep_their_thread_or_not_never_overlap_and_keep_their_order) {
  constexpr int kOperations = 400;
  std::atomic<int> in_pre{0}, in_post{0};
  std::vector<int> pres, posts;  // the stage guards them
  for (int i = 0; i < kOperations; ++i) {
    auto op = operation(i, [i] {
      std::this_thread::sleep_for(std::chrono::microseconds(i * 37 % 300));
      return Status::ok();
    });
    op.may_keep_thread = i % 3 != 0;
    op.pre = [&, i] {
      EXPECT_EQ(++in_pre, 1);
      pres.push_back(i);
      --in_pre;
    };
    op.post = [&, i] {
      EXPECT_EQ(++in_post, 1);
      posts.push_back(i);
      --in_post;
    };
    pipeline_.submit(std::move(op));
    if (i % 10 == 0) std::this_thread::sleep_for(1ms);
  }
  ASSERT_TRUE(pipeline_.wait_idle(soon()));
  std::vector<int> expected(kOperations);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(pres, expected);
  EXPECT_EQ(posts, expected);
  EXPECT_EQ(log_.lines_with("done").size(), std::size_t{kOperations});
}

TEST_F(StagePipelineTest, test_stages_more_operations_than_slots_never_exceed_the_slots) {
  std::atomic<int> running{0}, most{0};
  for (int i = 0; i < 40; ++i) {
    pipeline_.submit(operation(i, [&] {
      const int now = ++running;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      std::this_thread::sleep_for(1ms);
      --running;
      return Status::ok();
    }));
  }
  ASSERT_TRUE(pipeline_.wait_idle(soon()));
  EXPECT_LE(most, 4);
  EXPECT_GE(most, 2);
  EXPECT_EQ(log_.lines_with("done").size(), 40u);
}

TEST_F(StagePipelineTest, test_stages_failed_exchange_fails_it_and_all_later_ones_once) {
  pipeline_.submit(operation(0, [] { return Status::ok(); }));
  ASSERT_TRUE(pipeline_.wait_idle(soon()));
  pipeline_.submit(operation(1, [] { return Status(StatusCode::PeerLost, "gone"); }));
  ASSERT_TRUE(pipeline_.wait_idle(soon()));
  pipeline_.submit(operation(2, [] { return Status::ok(); }));
  ASSERT_TRUE(pipeline_.wait_idle(soon()));
  EXPECT_EQ(log_.lines(),
            (std::vector<std::string>{"pre 0", "post 0", "done 0", "pre 1", "failed 1", "failed 2"}));
  EXPECT_EQ(failures_, 1);
}

TEST_F(StagePipelineTest, test_stages_throwing_inner_stage_skips_the_exchange) {
  auto op = operation(0, [this] {
    log_.add("exchange 0");
    return Status::ok();
  });
  op.pre = [] { throw std::runtime_error("inner backend"); };
  pipeline_.submit(std::move(op));
  ASSERT_TRUE(pipeline_.wait_idle(soon()));
  EXPECT_EQ(log_.lines(), (std::vector<std::string>{"failed 0"}));
  EXPECT_EQ(failures_, 1);
}

TEST_F(StagePipelineTest, test_stages_done_may_wait_for_another_operation) {
  // As PowerSGD's hook does: a callback of the first collective issues a second one and waits for it.
  std::promise<void> nested_done;
  auto op = operation(0, [] { return Status::ok(); });
  op.done = [&](std::exception_ptr) {
    std::promise<void> inner_done;
    auto nested = operation(1, [] { return Status::ok(); });
    nested.done = [&](std::exception_ptr) { inner_done.set_value(); };
    pipeline_.submit(std::move(nested));
    inner_done.get_future().wait();
    nested_done.set_value();
  };
  pipeline_.submit(std::move(op));
  EXPECT_EQ(nested_done.get_future().wait_for(20s), std::future_status::ready);
  ASSERT_TRUE(pipeline_.wait_idle(soon()));
}

// One thread makes all steps, in order of issue; nothing runs on the thread that submits. However many wait
// for a slot, none holds the thread that would free it.
TEST_F(StagePipelineTest, test_stages_without_further_threads_run_one_after_the_other) {
  for (const bool may_keep_thread : {true, false}) {
    core::GrowingExecutor executor("few");
    ASSERT_TRUE(executor.keep_one().is_ok());
    const core::NoMoreThreads none;
    StagePipeline pipeline(executor, 2, [](const std::exception_ptr&) {});
    std::mutex mutex;
    std::vector<int> ends;
    const auto submit = [&](int number, std::function<Status()> exchange) {
      auto op = operation(number, std::move(exchange));
      op.may_keep_thread = may_keep_thread;
      op.done = [&, number](const std::exception_ptr& error) {
        std::lock_guard lock(mutex);
        EXPECT_EQ(error, nullptr);
        ends.push_back(number);
      };
      pipeline.submit(std::move(op));
    };
    constexpr int kOperations = 6;
    std::vector<int> expected = {0};
    submit(0, [] { return Status::ok(); });
    ASSERT_TRUE(pipeline.wait_idle(soon()));
    // At once, while the thread may still be busy with the end of that one.
    std::promise<void> began, release;
    submit(1, [&] {
      began.set_value();
      release.get_future().wait();
      return Status::ok();
    });
    expected.push_back(1);
    began.get_future().wait();
    {
      std::lock_guard lock(mutex);  // under which no operation can end
      for (int i = 2; i < kOperations; ++i) {
        submit(i, [] { return Status::ok(); });
        expected.push_back(i);
      }
    }
    release.set_value();
    ASSERT_TRUE(pipeline.wait_idle(soon()));
    std::ranges::sort(ends);  // what a done() is told of, the lane promises no order of
    EXPECT_EQ(ends, expected);
    EXPECT_EQ(executor.thread_count(), 1U);
  }
}

TEST_F(StagePipelineTest, test_operations_beside_without_further_threads_wait_for_one) {
  core::GrowingExecutor executor("few");
  ASSERT_TRUE(executor.keep_one().is_ok());
  const core::NoMoreThreads none;
  HostLane lane(executor);
  struct Group final : OperationGroup {
    Status failure() const override { return Status::ok(); }
    void failed(const std::exception_ptr&) override { ++failures; }
    std::exception_ptr to_exception(Status status, const OperationId&) const override {
      return as_exception(status);
    }
    std::exception_ptr named(const std::exception_ptr& error, const OperationId&) const override {
      return error;
    }
    std::atomic<int> failures{0};
  };
  const auto group = std::make_shared<Group>();
  std::promise<void> release;
  auto released = release.get_future().share();
  std::vector<std::promise<bool>> ended(2);
  for (std::size_t i = 0; i < 2; ++i) {
    auto message = std::make_shared<Operation>(OperationId{}, soon(), group);
    message->set_steps({nullptr,
                        [&] {
                          released.wait();
                          return Status::ok();
                        },
                        nullptr});
    message->on_done([&, i](const std::exception_ptr& error) { ended[i].set_value(error == nullptr); });
    lane.submit(message, Runs::Beside);
  }
  release.set_value();
  for (auto& end : ended) EXPECT_TRUE(end.get_future().get());
  EXPECT_EQ(group->failures, 0);
  EXPECT_EQ(executor.thread_count(), 1U);
}

TEST_F(StagePipelineTest, test_stages_fail_while_an_exchange_runs_fails_what_has_not_begun) {
  std::promise<void> release;
  auto released = release.get_future().share();
  for (int i = 0; i < 8; ++i) {
    pipeline_.submit(operation(i, [released] {
      released.wait_for(20s);
      return Status::ok();
    }));
  }
  pipeline_.fail(as_exception(Status(StatusCode::Aborted, "abort")));
  release.set_value();
  ASSERT_TRUE(pipeline_.wait_idle(soon()));
  EXPECT_EQ(log_.lines_with("failed").size(), 8u);
  EXPECT_TRUE(log_.lines_with("post").empty());
}

}  // namespace
}  // namespace geocomm::binding
