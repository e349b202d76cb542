// The turn of the IO thread, when another thread takes it.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "transport/io/io_loop.h"
#include "transport_fixture.h"

namespace geocomm::transport {
namespace {

using namespace std::chrono_literals;
using testing::patience;

class IoLoopTurn : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = IoLoop::create();
    ASSERT_TRUE(made.is_ok()) << made.status().to_string();
    loop_ = std::move(made).value();
    ASSERT_TRUE(loop_->start().is_ok());
    loop_->run([] {}, patience());
  }

  // The IO thread may still be on its way back to sleep.
  bool try_until_asleep(const IoLoop::Task& task) {
    for (int i = 0; i < 20'000; ++i) {
      if (loop_->try_run(task)) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

  std::shared_ptr<IoLoop> loop_;
};

TEST_F(IoLoopTurn, test_task_runs_on_the_calling_thread_while_the_io_thread_sleeps) {
  std::thread::id ran_on;
  bool in_loop = false;
  ASSERT_TRUE(try_until_asleep([&] {
    ran_on = std::this_thread::get_id();
    in_loop = loop_->in_loop();
  }));
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_TRUE(in_loop);
  EXPECT_FALSE(loop_->in_loop());
}

TEST_F(IoLoopTurn, test_busy_io_thread_keeps_its_turn) {
  std::promise<void> begun;
  std::promise<void> release;
  ASSERT_TRUE(loop_->post([&] {
    begun.set_value();
    release.get_future().wait_for(20s);
  }));
  begun.get_future().wait();
  EXPECT_FALSE(loop_->try_run([] { FAIL() << "ran beside the IO thread"; }));
  release.set_value();
  loop_->run([] {}, patience());  // the task uses what is on this stack
}

TEST_F(IoLoopTurn, test_task_of_the_turn_itself_is_refused) {
  bool nested = true;
  ASSERT_TRUE(try_until_asleep([&] { nested = loop_->try_run([] {}); }));
  EXPECT_FALSE(nested);
  loop_->run([&] { nested = loop_->try_run([] {}); }, patience());
  EXPECT_FALSE(nested);
}

TEST_F(IoLoopTurn, test_timer_set_in_a_borrowed_turn_fires_although_the_io_thread_sleeps_for_longer) {
  std::promise<void> fired;
  ASSERT_TRUE(try_until_asleep([&] {
    loop_->add_timer(IoLoop::Clock::now() + 10ms, [&] {
      EXPECT_TRUE(loop_->in_loop());
      fired.set_value();
    });
  }));
  EXPECT_EQ(fired.get_future().wait_for(20s), std::future_status::ready);
  loop_->run([] {}, patience());
}

TEST_F(IoLoopTurn, test_task_posted_in_a_borrowed_turn_runs_on_the_io_thread) {
  std::promise<std::thread::id> posted;
  ASSERT_TRUE(try_until_asleep([&] { loop_->post([&] { posted.set_value(std::this_thread::get_id()); }); }));
  auto ran = posted.get_future();
  ASSERT_EQ(ran.wait_for(20s), std::future_status::ready);
  EXPECT_NE(ran.get(), std::this_thread::get_id());
  loop_->run([] {}, patience());
}

TEST_F(IoLoopTurn, test_many_threads_take_turns_one_at_a_time) {
  int unguarded = 0;  // the turn guards it
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const auto count = [&] {
          ++unguarded;
          ++ran;
        };
        if (!loop_->try_run(count)) loop_->post(count);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  loop_->run([] {}, patience());
  EXPECT_EQ(ran, 2000);
  EXPECT_EQ(unguarded, 2000);
}

TEST_F(IoLoopTurn, test_task_behind_one_that_does_not_return_is_given_up_at_its_deadline_and_runs_later) {
  const auto release = std::make_shared<std::promise<void>>();
  const auto ran = std::make_shared<std::promise<void>>();
  ASSERT_TRUE(loop_->post([release] { release->get_future().wait(); }));
  EXPECT_FALSE(loop_->run([ran] { ran->set_value(); }, core::Deadline::after(20ms)));
  EXPECT_FALSE(loop_->stop(core::Deadline::after(20ms)));
  release->set_value();
  EXPECT_TRUE(loop_->stop(patience()));
  EXPECT_EQ(ran->get_future().wait_for(0s), std::future_status::ready);
}

TEST_F(IoLoopTurn, test_stopped_loop_gives_no_turn) {
  EXPECT_TRUE(loop_->stop(patience()));
  EXPECT_FALSE(loop_->try_run([] { FAIL() << "ran in a loop that has stopped"; }));
}

// On whatever thread: no loop goes on without a task that others wait for.
TEST(IoLoopDeathTest, test_what_a_task_throws_ends_the_process_in_words) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto throws = [] { throw std::bad_alloc(); };
  EXPECT_DEATH(
      {
        auto loop = std::move(IoLoop::create()).value();
        EXPECT_TRUE(loop->start().is_ok());
        EXPECT_TRUE(loop->post(throws));
        loop.reset();
      },
      "an exception ended the thread geocomm-io: out of memory");
  EXPECT_DEATH(
      {
        auto loop = std::move(IoLoop::create()).value();
        EXPECT_TRUE(loop->start().is_ok());
        for (;;) (void)loop->try_run(throws);  // until the loop sleeps
      },
      "an exception ended a round of the IO loop on the thread of a caller: out of memory");
}

}  // namespace
}  // namespace geocomm::transport
