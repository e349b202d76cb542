#include <gtest/gtest.h>

#include <chrono>

#include "core/deadline.h"

namespace geocomm::core {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(Deadline, test_deadline_in_the_past_is_expired_with_nothing_left) {
  const Deadline deadline = Deadline::after(milliseconds(-5));
  EXPECT_TRUE(deadline.expired());
  EXPECT_EQ(deadline.remaining(), milliseconds(0));
}

TEST(Deadline, test_deadline_in_the_future_is_not_expired) {
  const Deadline deadline = Deadline::after(hours(1));
  EXPECT_FALSE(deadline.expired());
  EXPECT_GT(deadline.remaining(), milliseconds(0));
  EXPECT_LE(deadline.remaining(), hours(1));
}

TEST(Deadline, test_earlier_of_two_is_the_sooner) {
  const auto now = Deadline::Clock::now();
  const Deadline soon = Deadline::at(now + milliseconds(1));
  const Deadline late = Deadline::at(now + hours(1));
  EXPECT_EQ(soon.earlier(late).when(), soon.when());
  EXPECT_EQ(late.earlier(soon).when(), soon.when());
}

// A wait of remaining() must not wake before the deadline.
TEST(Deadline, test_remaining_rounds_up) {
  const Deadline deadline = Deadline::at(Deadline::Clock::now() + hours(1));
  const auto before = Deadline::Clock::now();
  const auto left = deadline.remaining();
  const auto after = Deadline::Clock::now();
  EXPECT_GE(after + left, deadline.when());
  EXPECT_LT(before + left, deadline.when() + milliseconds(1));
}

}  // namespace
}  // namespace geocomm::core
