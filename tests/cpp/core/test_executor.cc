#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <future>
#include <latch>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/executor.h"
#include "core/log.h"

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
  executor.submit([&] {
    both.arrive_and_wait();
    first.set_value(std::this_thread::get_id());
  });
  executor.submit([&] {
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
    executor.submit([&] { again.set_value(std::this_thread::get_id()); });
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
  for (int i = 0; i < kTasks; ++i) executor.submit([&] { all.arrive_and_wait(); });
  all.wait();
  EXPECT_GE(executor.thread_count(), 1u);
}

TEST(GrowingExecutor, test_destructor_waits_for_running_tasks) {
  std::atomic<bool> finished{false};
  {
    GrowingExecutor executor("grow");
    executor.submit([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      finished = true;
    });
  }
  EXPECT_TRUE(finished);
}

TEST(GrowingExecutor, test_idle_threads_end_after_keep) {
  GrowingExecutor executor("grow", std::chrono::milliseconds(1));
  std::promise<void> done;
  executor.submit([&] { done.set_value(); });
  done.get_future().wait();
  // Waits as long as the test's own time limit allows.
  while (executor.thread_count() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::promise<void> again;
  executor.submit([&] { again.set_value(); });
  again.get_future().wait();
}

TEST(GrowingExecutor, test_what_a_task_owns_is_released_after_it_ran) {
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owned;
  {
    GrowingExecutor executor("grow");
    executor.submit([owned] {});
    owned.reset();
  }
  EXPECT_TRUE(watch.expired());
}

TEST(GrowingExecutor, test_submit_from_many_threads_runs_every_task) {
  std::atomic<int> ran{0};
  {
    GrowingExecutor executor("grow", std::chrono::milliseconds(1));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) executor.submit([&] { ++ran; });
      });
    }
    for (auto& thread : threads) thread.join();
  }
  EXPECT_EQ(ran, 400);
}

// No thread can be made: each would get a stack that no memory holds. (A limit on threads does not bind
// root.) What is logged of it is not for stderr, which has a thread of its own.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    set_log_sink([](LogLevel, const std::string&) {});
    pthread_attr_t enormous;
    EXPECT_EQ(::pthread_getattr_default_np(&usual_), 0);
    EXPECT_EQ(::pthread_getattr_default_np(&enormous), 0);
    EXPECT_EQ(::pthread_attr_setstacksize(&enormous, std::size_t{1} << 47), 0);
    EXPECT_EQ(::pthread_setattr_default_np(&enormous), 0);
    ::pthread_attr_destroy(&enormous);
  }
  ~NoMoreThreads() {
    set_log_sink(nullptr);
    EXPECT_EQ(::pthread_setattr_default_np(&usual_), 0);
    ::pthread_attr_destroy(&usual_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t usual_;
};

TEST(GrowingExecutor, test_without_threads_submit_runs_the_task_itself) {
  const NoMoreThreads none;
  GrowingExecutor executor("grow");
  std::thread::id ran;
  executor.submit([&] { ran = std::this_thread::get_id(); });
  EXPECT_EQ(ran, std::this_thread::get_id());
}

TEST(GrowingExecutor, test_without_threads_post_runs_nothing_under_the_lock_of_its_caller) {
  GrowingExecutor executor("grow");
  std::mutex mutex;
  std::vector<int> ran;
  const auto task = [&](int number) {
    return [&ran, &mutex, number] {
      std::lock_guard lock(mutex);
      ran.push_back(number);
    };
  };
  {
    const NoMoreThreads none;
    {
      std::lock_guard lock(mutex);
      executor.post(task(1));
      executor.post(task(2));
    }
    EXPECT_TRUE(ran.empty());
    executor.submit(task(3));  // whoever may run tasks runs those, too
    EXPECT_EQ(ran, (std::vector<int>{1, 2, 3}));
    executor.post(task(4));
  }
  std::promise<void> last;
  executor.post([&] { last.set_value(); });  // gets a thread, which takes what was left
  last.get_future().wait();
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace geocomm::core
