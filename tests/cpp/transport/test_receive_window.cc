// Which numbers have arrived: against a plain set, and what the peer is told of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "transport/mux/receive_window.h"

namespace geocomm::transport {
namespace {

using core::StatusCode;

TEST(ReceiveWindow, test_shuffled_numbers_arrive_once_and_are_told_completely) {
  std::mt19937_64 random(1);
  for (const std::uint64_t count : {1U, 63U, 64U, 65U, 1000U}) {
    std::vector<std::uint64_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 1);
    std::shuffle(numbers.begin(), numbers.end(), random);
    ReceiveWindow window;
    std::set<std::uint64_t> arrived;
    std::set<std::uint64_t> told;
    const auto collect = [&] {
      std::vector<AckPacket> acks;
      window.collect(acks);
      EXPECT_FALSE(acks.empty());
      for (const AckPacket& ack : acks) {
        EXPECT_TRUE(parse_ack(make_ack(ack)).is_ok());
        for (std::uint64_t number = 1; number < ack.low; ++number) told.insert(number);
        for (std::uint64_t i = 0; i < 64; ++i) {
          if ((ack.bits >> i & 1) != 0) told.insert(ack.base + i);
        }
      }
    };
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_TRUE(window.check(numbers[i]).is_ok());
      EXPECT_EQ(window.has(numbers[i]), false);
      EXPECT_TRUE(window.add(numbers[i]));
      EXPECT_FALSE(window.add(numbers[i]));
      EXPECT_TRUE(window.has(numbers[i]));
      arrived.insert(numbers[i]);
      std::uint64_t low = 1;
      while (arrived.contains(low)) ++low;
      EXPECT_EQ(window.low(), low);
      if (random() % 7 == 0 || i + 1 == numbers.size()) {
        collect();
        EXPECT_EQ(told, arrived);
      }
    }
    told.clear();
    window.tell_all();
    collect();
    EXPECT_EQ(told, arrived);
  }
}

TEST(ReceiveWindow, test_numbers_too_far_ahead_are_corrupt) {
  ReceiveWindow window;
  EXPECT_EQ(window.check(0).code(), StatusCode::CorruptData);
  EXPECT_TRUE(window.check(kMaxNumberSpan).is_ok());
  EXPECT_EQ(window.check(kMaxNumberSpan + 1).code(), StatusCode::CorruptData);
  EXPECT_EQ(window.check(~std::uint64_t{0}).code(), StatusCode::CorruptData);
  ASSERT_TRUE(window.add(1));
  EXPECT_TRUE(window.check(kMaxNumberSpan + 1).is_ok());
  EXPECT_TRUE(window.add(kMaxNumberSpan + 1));
  EXPECT_EQ(window.low(), 2U);
}

TEST(ReceiveWindow, test_nothing_new_is_still_an_acknowledgement) {
  ReceiveWindow window;
  std::vector<AckPacket> acks;
  window.collect(acks);
  ASSERT_EQ(acks.size(), 1U);
  EXPECT_EQ(acks[0].low, 1U);
  EXPECT_EQ(acks[0].bits, 0U);
}

}  // namespace
}  // namespace geocomm::transport
