#include <gtest/gtest.h>

#include "collective/policy/rate_meter.h"

namespace geocomm::collective {
namespace {

using namespace std::chrono_literals;

class RateMeterTest : public ::testing::Test {
 protected:
  void arrive(std::chrono::milliseconds at, std::size_t bytes, bool begins, bool ends, int rank = 1) {
    meter_.arrived(rank, bytes, begins, ends, start_ + at);
  }
  RateMeter meter_;
  const RateMeter::Clock::time_point start_ = RateMeter::Clock::now();
};

TEST_F(RateMeterTest, the_first_chunk_and_pauses_between_operations_do_not_count) {
  arrive(0ms, 100, true, false);
  arrive(10ms, 100, false, false);
  arrive(20ms, 100, false, true);
  arrive(5000ms, 100, true, false);
  arrive(5010ms, 100, false, true);
  const auto rates = meter_.take();
  ASSERT_EQ(rates.size(), 1u);
  EXPECT_EQ(rates[0].rank, 1);
  EXPECT_EQ(rates[0].bytes, 300u);
  EXPECT_NEAR(rates[0].seconds, 0.03, 1e-9);
}

TEST_F(RateMeterTest, operations_side_by_side_share_the_time) {
  arrive(0ms, 100, true, false);
  arrive(10ms, 100, true, false);
  arrive(20ms, 100, false, true);
  arrive(30ms, 100, false, true);
  arrive(900ms, 100, true, false);
  const auto rates = meter_.take();
  ASSERT_EQ(rates.size(), 1u);
  EXPECT_EQ(rates[0].bytes, 300u);
  EXPECT_NEAR(rates[0].seconds, 0.03, 1e-9);
}

TEST_F(RateMeterTest, operations_of_one_chunk_say_nothing_and_taking_starts_anew) {
  arrive(0ms, 100, false, false);
  arrive(10ms, 100, false, false);
  EXPECT_TRUE(meter_.take().empty());
  arrive(20ms, 100, true, false, 2);
  arrive(30ms, 100, false, true, 2);
  EXPECT_EQ(meter_.take().size(), 1u);
  EXPECT_TRUE(meter_.take().empty());
}

}  // namespace
}  // namespace geocomm::collective
