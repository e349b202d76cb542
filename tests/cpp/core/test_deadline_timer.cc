#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/deadline_timer.h"

namespace geocomm::core {
namespace {

using namespace std::chrono_literals;

TEST(DeadlineTimer, test_tasks_run_in_the_order_of_their_deadlines_and_not_before) {
  std::mutex mutex;
  std::vector<int> order;
  std::promise<void> all;
  DeadlineTimer timer;
  const auto start = Deadline::Clock::now();
  const auto add = [&](int index, std::chrono::milliseconds after) {
    (void)timer.add(Deadline::at(start + after), [&, index, after] {
      EXPECT_GE(Deadline::Clock::now(), start + after);
      std::lock_guard lock(mutex);
      order.push_back(index);
      if (order.size() == 3) all.set_value();
    });
  };
  add(2, 60ms);
  add(0, 20ms);  // due before what the thread sleeps for
  add(1, 40ms);
  ASSERT_EQ(all.get_future().wait_for(20s), std::future_status::ready);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST(DeadlineTimer, test_cancelled_task_never_runs_and_is_freed_at_once) {
  std::atomic<bool> ran{false};
  std::promise<void> cancelled;
  std::promise<void> later;
  DeadlineTimer timer;
  // Until then the timer's thread begins no other.
  (void)timer.add(Deadline::after(0ms), [&] { cancelled.get_future().wait(); });
  auto held = std::make_shared<int>(1);
  const auto id = timer.add(Deadline::after(1ms), [&ran, held] { ran = true; }).value();
  EXPECT_EQ(held.use_count(), 2);
  timer.cancel(id);
  EXPECT_EQ(held.use_count(), 1);
  timer.cancel(id);
  (void)timer.add(Deadline::after(2ms), [&] { later.set_value(); });
  cancelled.set_value();
  ASSERT_EQ(later.get_future().wait_for(20s), std::future_status::ready);
  EXPECT_FALSE(ran);
}

// The thread sleeps until the deadline of one that was cancelled; what is added then is due later, and wakes
// nobody.
TEST(DeadlineTimer, test_task_added_behind_a_cancelled_one_runs) {
  std::promise<void> ran;
  DeadlineTimer timer;
  timer.cancel(timer.add(Deadline::after(20ms), [] {}).value());
  (void)timer.add(Deadline::after(60ms), [&] { ran.set_value(); });
  EXPECT_EQ(ran.get_future().wait_for(20s), std::future_status::ready);
}

TEST(DeadlineTimer, test_thread_ends_without_tasks_and_begins_again) {
  DeadlineTimer timer(1ms);
  EXPECT_FALSE(timer.has_thread());
  for (int round = 0; round < 3; ++round) {
    timer.cancel(timer.add(Deadline::after(1h), [] {}).value());
    // Waits as long as the test's own time limit allows.
    while (timer.has_thread()) std::this_thread::sleep_for(1ms);
    std::promise<void> ran;
    (void)timer.add(Deadline::after(5ms), [&] { ran.set_value(); });
    EXPECT_TRUE(timer.has_thread());
    ASSERT_EQ(ran.get_future().wait_for(20s), std::future_status::ready);
  }
}

TEST(DeadlineTimer, test_destructor_drops_what_is_not_due) {
  std::atomic<bool> ran{false};
  auto held = std::make_shared<int>(1);
  {
    DeadlineTimer timer;
    (void)timer.add(Deadline::after(std::chrono::hours(1)), [&ran, held] { ran = true; });
  }
  EXPECT_FALSE(ran);
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace geocomm::core
