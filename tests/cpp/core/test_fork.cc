#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "../sanitizers.h"
#include "core/deadline_timer.h"
#include "core/executor.h"
#include "core/fork.h"
#include "core/log.h"

namespace geocomm::core {
namespace {

using namespace std::chrono_literals;

constexpr const char* kNotSanitized =
    "not under a sanitizer: a forked child starts threads, or has a limit of memory";

// Whether `holds` is true in a forked child; false also if it does not end.
bool in_child(const std::function<bool()>& holds) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(holds() ? 0 : 1);
  }
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Fork, test_mark_of_the_parent_is_not_the_childs_nor_its_childs) {
  const ProcessMark mark;
  EXPECT_TRUE(in_child([&] {
    const ProcessMark own;
    return !mark.is_here() && own.is_here() && in_child([&] { return !mark.is_here() && !own.is_here(); });
  }));
  EXPECT_TRUE(mark.is_here());
}

TEST(Fork, test_object_of_a_process_is_one_for_all_threads_and_another_in_the_child) {
  static constinit PerProcess<std::atomic<int>> counts;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([] { ++counts.get(0); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(counts.get(0), 8);
  const auto* parents = &counts.get(0);
  EXPECT_TRUE(in_child([&] { return &counts.get(5) != parents && counts.get(5) == 5; }));
  EXPECT_EQ(&counts.get(0), parents);
}

// The executor has an idle thread, and the timer one that sleeps: neither is in the child.
TEST(Fork, test_child_runs_tasks_on_threads_of_its_own) {
  if (kUnderAsan || kUnderTsan) GTEST_SKIP() << kNotSanitized;
  static constinit PerProcess<GrowingExecutor> executor;
  static constinit PerProcess<DeadlineTimer> timer;
  const auto both_run = [] {
    std::promise<void> ran;
    std::promise<void> was_due;
    executor.get("test").post([&] { ran.set_value(); });
    (void)timer.get().add(Deadline::after(1ms), [&] { was_due.set_value(); });
    ran.get_future().wait();
    was_due.get_future().wait();
    return true;
  };
  EXPECT_TRUE(both_run());
  EXPECT_TRUE(in_child(both_run));
  EXPECT_TRUE(both_run());
}

TEST(Fork, test_child_writes_log_lines_although_the_parent_was_writing_one) {
  if (kUnderAsan || kUnderTsan) GTEST_SKIP() << kNotSanitized;
  std::promise<void> entered;
  std::promise<void> release;
  set_log_level(LogLevel::Warning);
  set_log_sink([&](LogLevel, const std::string&) {
    entered.set_value();
    release.get_future().wait();
  });
  std::thread writer([] { log(LogLevel::Error, "one line"); });
  entered.get_future().wait();
  const bool wrote = in_child([] {
    log(LogLevel::Error, "a line of a forked child, in a test");
    return true;
  });
  release.set_value();
  writer.join();
  set_log_sink(nullptr);
  EXPECT_TRUE(wrote);
}

// As if the system allowed no more.
void take_all_threads() {
  auto& taken = *new std::vector<std::thread>();
  taken.reserve(10'000);
  // What is allocated from here on comes out of what the heap has.
  ASSERT_EQ(::mallopt(M_TRIM_THRESHOLD, 1 << 30), 1);
  {
    const std::vector<std::string> room(1000, std::string(1000, ' '));
  }
  const rlimit none{1, 1};  // of memory: no stacks any more
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &none), 0);
  try {
    for (;;) taken.emplace_back([] { ::pause(); });
  } catch (const std::system_error&) {
  }
}

bool without_threads(const std::function<bool()>& holds) {
  return in_child([&] {
    set_log_level(LogLevel::Off);
    take_all_threads();
    return holds();
  });
}

TEST(ThreadLimit, test_task_waits_for_a_thread_that_is_busy) {
  if (kUnderAsan || kUnderTsan) GTEST_SKIP() << kNotSanitized;
  EXPECT_TRUE(in_child([] {
    set_log_level(LogLevel::Off);
    auto executor = std::make_unique<GrowingExecutor>("test");
    std::promise<void> begun;
    std::promise<void> release;
    const std::future<void> released = release.get_future();
    std::thread::id busy;
    std::thread::id waited;
    executor->post([&] {
      busy = std::this_thread::get_id();
      begun.set_value();
      released.wait();
    });
    begun.get_future().wait();
    take_all_threads();
    executor->post([&] { waited = std::this_thread::get_id(); });
    if (waited != std::thread::id() || executor->thread_count() != 1) return false;
    release.set_value();
    executor.reset();
    return waited == busy;
  }));
}

TEST(ThreadLimit, test_pool_and_timer_do_without_a_thread) {
  if (kUnderAsan || kUnderTsan) GTEST_SKIP() << kNotSanitized;
  EXPECT_TRUE(without_threads([] {
    const ThreadPool pool(3, "test");
    DeadlineTimer timer;
    const auto refused = timer.add(Deadline::after(1ms), [] {});
    return pool.thread_count() == 0 && !refused.is_ok() && !timer.has_thread();
  }));
}

}  // namespace
}  // namespace geocomm::core
