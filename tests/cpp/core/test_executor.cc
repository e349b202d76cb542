#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <latch>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "../no_more_threads.h"
#include "core/deadline_timer.h"
#include "core/executor.h"

namespace geocomm::core {
namespace {

TEST(ThreadPool, test_destructor_with_queued_tasks_runs_them_all) {
  std::atomic<int> ran{0};
  {
    ThreadPool pool(3, "pool");
    EXPECT_EQ(pool.thread_count(), 3u);
    for (int i = 0; i < 1000; ++i) pool.submit([&] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

TEST(ThreadPool, test_pool_of_no_threads_gets_one) {
  std::promise<void> done;
  ThreadPool pool(0, "pool");
  EXPECT_EQ(pool.thread_count(), 1u);
  pool.submit([&] { done.set_value(); });
  done.get_future().wait();
}

TEST(ThreadPool, test_one_thread_keeps_the_order) {
  std::vector<int> order;
  {
    ThreadPool pool(1, "pool");
    for (int i = 0; i < 100; ++i) pool.submit([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(ThreadPool, test_task_may_submit_another) {
  std::promise<void> done;
  ThreadPool pool(1, "pool");
  pool.submit([&] { pool.submit([&] { done.set_value(); }); });
  done.get_future().wait();
}

TEST(GrowingExecutor, test_last_thread_to_become_idle_is_the_first_to_work_again) {
  GrowingExecutor executor("grow");
  std::latch both(2);
  std::promise<void> release;
  std::promise<std::thread::id> first;
  std::promise<std::thread::id> last;
  executor.post([&] {
    both.arrive_and_wait();
    first.set_value(std::this_thread::get_id());
  });
  executor.post([&] {
    both.arrive_and_wait();
    release.get_future().wait();
    last.set_value(std::this_thread::get_id());
  });
  first.get_future().wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // idle by now
  release.set_value();
  const auto expected = last.get_future().get();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (int i = 0; i < 3; ++i) {
    std::promise<std::thread::id> again;
    executor.post([&] { again.set_value(std::this_thread::get_id()); });
    EXPECT_EQ(again.get_future().get(), expected);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(executor.thread_count(), 2u);
}

// Each task waits for all others: with a fixed number of threads this would never end.
TEST(GrowingExecutor, test_tasks_that_wait_for_each_other_all_run) {
  constexpr int kTasks = 20;
  std::latch all(kTasks);
  GrowingExecutor executor("grow");
  for (int i = 0; i < kTasks; ++i) executor.post([&] { all.arrive_and_wait(); });
  all.wait();
  EXPECT_GE(executor.thread_count(), 1u);
}

TEST(GrowingExecutor, test_destructor_waits_for_running_tasks) {
  std::atomic<bool> finished{false};
  {
    GrowingExecutor executor("grow");
    executor.post([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      finished = true;
    });
  }
  EXPECT_TRUE(finished);
}

TEST(GrowingExecutor, test_idle_threads_end_after_keep) {
  GrowingExecutor executor("grow", std::chrono::milliseconds(1));
  std::promise<void> done;
  executor.post([&] { done.set_value(); });
  done.get_future().wait();
  // Waits as long as the test's own time limit allows.
  while (executor.thread_count() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::promise<void> again;
  executor.post([&] { again.set_value(); });
  again.get_future().wait();
}

TEST(GrowingExecutor, test_what_a_task_owns_is_released_after_it_ran) {
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owned;
  {
    GrowingExecutor executor("grow");
    executor.post([owned] {});
    owned.reset();
  }
  EXPECT_TRUE(watch.expired());
}

TEST(GrowingExecutor, test_post_from_many_threads_runs_every_task) {
  std::atomic<int> ran{0};
  {
    GrowingExecutor executor("grow", std::chrono::milliseconds(1));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) executor.post([&] { ++ran; });
      });
    }
    for (auto& thread : threads) thread.join();
  }
  EXPECT_EQ(ran, 400);
}

TEST(GrowingExecutor, test_without_any_thread_it_says_what_to_do) {
  GrowingExecutor executor("grow");
  const NoMoreThreads none;
  const Status refused = executor.keep_one();
  EXPECT_EQ(refused.code(), StatusCode::Internal);
  EXPECT_NE(refused.sys_errno(), 0);
  EXPECT_NE(refused.message().find("ulimit -u"), std::string::npos) << refused.message();
  bool ran = false;
  EXPECT_FALSE(executor.try_post([&] { ran = true; }));
  EXPECT_FALSE(ran);
}

TEST(ThreadPool, test_without_any_thread_it_says_what_to_do) {
  const NoMoreThreads none;
  const ThreadPool pool(3, "pool");
  EXPECT_EQ(pool.thread_count(), 0U);
  EXPECT_NE(pool.why_none().message().find("ulimit -u"), std::string::npos) << pool.why_none().message();
}

TEST(GrowingExecutor, test_without_further_threads_tasks_wait_for_the_one_that_is_kept) {
  GrowingExecutor executor("grow", std::chrono::milliseconds(1));
  ASSERT_TRUE(executor.keep_one().is_ok());
  const NoMoreThreads none;
  int warnings = 0;
  set_log_sink([&](LogLevel, const std::string& line) {
    ++warnings;
    EXPECT_NE(line.find("ulimit -u"), std::string::npos) << line;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // idle for longer than threads are kept
  std::promise<void> began, release, last;
  std::mutex mutex;
  std::vector<int> ran;
  const auto task = [&](int number) {
    return [&ran, &mutex, number] {
      std::lock_guard lock(mutex);
      ran.push_back(number);
    };
  };
  executor.post([&] {
    began.set_value();
    release.get_future().wait();
  });
  began.get_future().wait();
  EXPECT_FALSE(executor.try_post(task(0)));
  {
    std::lock_guard lock(mutex);  // which the tasks take: none runs in here
    executor.post(task(1));
    executor.post(task(2));
  }
  executor.post([&] { last.set_value(); });
  release.set_value();
  last.get_future().wait();
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
  EXPECT_EQ(executor.thread_count(), 1u);
  EXPECT_EQ(warnings, 1);
  set_log_sink([](LogLevel, const std::string&) {});
}

TEST(StartThread, test_name_is_the_threads) {
  std::array<char, 16> name{};
  auto thread = start_thread("a-name-that-is-too-long", [&] {
    EXPECT_EQ(::pthread_getname_np(::pthread_self(), name.data(), name.size()), 0);
  });
  ASSERT_TRUE(thread.is_ok());
  thread->join();
  EXPECT_STREQ(name.data(), "a-name-that-is-");
}

// Whatever runs on a thread of geocomm: what nobody catches ends the process, and says where.
TEST(MustNotThrowDeathTest, test_what_a_thread_throws_ends_the_process_in_words) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto throws = [] { throw std::bad_alloc(); };
  EXPECT_DEATH(
      {
        auto thread = start_thread("first", throws);
        thread->join();
      },
      "geocomm error: an exception ended the thread first: out of memory");
  EXPECT_DEATH({ ThreadPool(1, "pool").submit(throws); }, "ended the thread pool0: out of memory");
  EXPECT_DEATH({ GrowingExecutor("grow").post(throws); }, "ended the thread grow: out of memory");
  EXPECT_DEATH(
      {
        DeadlineTimer timer;
        (void)timer.add(Deadline::after(std::chrono::milliseconds(1)), [] { throw 1; });
        std::this_thread::sleep_for(std::chrono::minutes(1));
      },
      "ended the thread geocomm-timer: of a type");
}

}  // namespace
}  // namespace geocomm::core
