#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <thread>

#include "binding/operation/exposed_time.h"

namespace geocomm::binding {
namespace {

using namespace std::chrono_literals;  // NOLINT
using Clock = ExposedTime::Clock;

constexpr auto kWhile = 30ms;

std::chrono::nanoseconds exposed(const ExposedTime& time) {
  return std::chrono::nanoseconds(time.nanoseconds());
}

// Runs until this thread has had a core for kWhile.
void keep_busy() {
  const auto ran = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  };
  const auto begin = ran();
  while (ran() - begin < kWhile) {
  }
}

TEST(ExposedTime, test_thread_in_wait_counts_for_as_long) {
  ExposedTime time;
  const auto begin = Clock::now();
  {
    const ExposedTime::Wait wait(time);
    std::this_thread::sleep_for(kWhile);
    keep_busy();  // the last step of an operation is done by the thread that waits
  }
  EXPECT_GE(exposed(time), 2 * kWhile);
  EXPECT_LE(exposed(time), Clock::now() - begin);
}

TEST(ExposedTime, test_thread_that_stands_still_with_a_future_counts_until_the_end) {
  ExposedTime time;
  const auto begin = Clock::now();
  const auto thread = time.future_taken();
  std::this_thread::sleep_for(kWhile);
  time.ended(thread);
  EXPECT_GE(exposed(time), kWhile);
  EXPECT_LE(exposed(time), Clock::now() - begin);

  const auto at_end = exposed(time);
  std::this_thread::sleep_for(kWhile);
  EXPECT_EQ(exposed(time), at_end);
}

TEST(ExposedTime, test_thread_that_runs_with_a_future_does_not_count) {
  ExposedTime time;
  const auto begin = Clock::now();
  const auto thread = time.future_taken();
  keep_busy();
  time.ended(thread);
  EXPECT_LE(exposed(time), Clock::now() - begin - kWhile);
}

TEST(ExposedTime, test_operations_at_the_same_time_count_once) {
  ExposedTime time;
  const auto begin = Clock::now();
  const auto thread = time.future_taken();
  ASSERT_EQ(time.future_taken(), thread);
  {
    const ExposedTime::Wait wait(time);
    std::this_thread::sleep_for(kWhile);
    std::thread([&] { time.ended(thread); }).join();
    std::this_thread::sleep_for(kWhile);
  }
  std::this_thread::sleep_for(kWhile);
  time.ended(thread);
  EXPECT_GE(exposed(time), 3 * kWhile);
  EXPECT_LE(exposed(time), Clock::now() - begin);
}

TEST(ExposedTime, test_thread_that_is_left_out_does_not_count) {
  ExposedTime time;
  std::thread([&] {
    ExposedTime::leave_out_this_thread();
    const auto thread = time.future_taken();
    const ExposedTime::Wait wait(time);
    std::this_thread::sleep_for(kWhile);
    time.ended(thread);
  }).join();
  EXPECT_EQ(time.nanoseconds(), 0);
}

TEST(ExposedTime, test_thread_that_has_ended_no_longer_counts) {
  ExposedTime time;
  pid_t thread = 0;
  std::thread([&] { thread = time.future_taken(); }).join();
  std::this_thread::sleep_for(kWhile);
  time.ended(thread);
  EXPECT_LT(exposed(time), kWhile);
}

}  // namespace
}  // namespace geocomm::binding
