#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/half.h"

namespace geocomm::core {
namespace {

// The value of a half or bfloat16 by its definition, in double.
double value_of(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

struct Format {
  int exponent_bits;
  int mantissa_bits;
  float (*widen)(std::uint16_t);
  std::uint16_t (*narrow)(float);
  std::uint16_t (*narrow_saturated)(float);
  std::uint16_t inf;
};
constexpr Format kHalf{5, 10, half_to_float, float_to_half, float_to_half_saturated, 0x7C00};
constexpr Format kBrain{8, 7, bfloat16_to_float, float_to_bfloat16, float_to_bfloat16_saturated, 0x7F80};

class HalfFormats : public testing::TestWithParam<Format> {};

TEST_P(HalfFormats, test_widen_every_pattern_is_exact) {
  const Format& format = GetParam();
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto narrow = static_cast<std::uint16_t>(bits);
    const double expected = value_of(narrow, format.exponent_bits, format.mantissa_bits);
    const float wide = format.widen(narrow);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << std::hex << bits;
    } else {
      ASSERT_EQ(wide, expected) << std::hex << bits;
      ASSERT_EQ(std::signbit(wide), std::signbit(expected)) << std::hex << bits;
    }
  }
}

TEST_P(HalfFormats, test_narrow_of_every_widened_pattern_is_identity) {
  const Format& format = GetParam();
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto narrow = static_cast<std::uint16_t>(bits);
    const float wide = format.widen(narrow);
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(format.widen(format.narrow(wide)))) << std::hex << bits;
      ASSERT_TRUE(std::isnan(format.widen(format.narrow_saturated(wide)))) << std::hex << bits;
    } else {
      ASSERT_EQ(format.narrow(wide), narrow) << std::hex << bits;
      ASSERT_EQ(format.narrow_saturated(wide), narrow) << std::hex << bits;
    }
  }
}

// Between each two neighbours: the middle goes to the even one, the floats beside it to the nearer one.
TEST_P(HalfFormats, test_narrow_around_every_midpoint_rounds_to_nearest_even) {
  const Format& format = GetParam();
  for (std::uint32_t bits = 0; bits + 1 < format.inf; ++bits) {
    const auto below = static_cast<std::uint16_t>(bits);
    const auto above = static_cast<std::uint16_t>(bits + 1);
    const double middle = (value_of(below, format.exponent_bits, format.mantissa_bits) +
                           value_of(above, format.exponent_bits, format.mantissa_bits)) /
                          2;
    const auto exact = static_cast<float>(middle);
    ASSERT_EQ(exact, middle);
    ASSERT_EQ(format.narrow(exact), (bits & 1) != 0 ? above : below) << std::hex << bits;
    ASSERT_EQ(format.narrow(std::nextafter(exact, 0.0f)), below) << std::hex << bits;
    ASSERT_EQ(format.narrow(std::nextafter(exact, std::numeric_limits<float>::max())), above)
        << std::hex << bits;
    ASSERT_EQ(format.narrow(-exact), format.narrow(exact) | 0x8000) << std::hex << bits;
  }
}

TEST_P(HalfFormats, test_narrow_beyond_the_range_gives_inf_or_saturates) {
  const Format& format = GetParam();
  const auto largest = static_cast<std::uint16_t>(format.inf - 1);
  const float max = std::numeric_limits<float>::max();
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(format.narrow(max), format.inf);
  EXPECT_EQ(format.narrow(inf), format.inf);
  EXPECT_EQ(format.narrow(-inf), format.inf | 0x8000);
  EXPECT_EQ(format.narrow_saturated(max), largest);
  EXPECT_EQ(format.narrow_saturated(-max), largest | 0x8000);
  EXPECT_EQ(format.narrow_saturated(inf), format.inf);
  EXPECT_EQ(format.narrow_saturated(-inf), format.inf | 0x8000);
}

TEST_P(HalfFormats, test_narrow_signalling_nan_with_low_payload_stays_nan) {
  const Format& format = GetParam();
  const std::uint16_t narrow = format.narrow(std::bit_cast<float>(0x7F800001u));
  EXPECT_TRUE(std::isnan(format.widen(narrow)));
  EXPECT_TRUE(std::isnan(format.widen(format.narrow(std::bit_cast<float>(0xFFFFFFFFu)))));
}

INSTANTIATE_TEST_SUITE_P(Formats, HalfFormats, testing::Values(kHalf, kBrain),
                         [](const auto& info) { return info.index == 0 ? "half" : "bfloat16"; });

TEST(Half, test_float_to_half_at_overflow_edge_rounds_right) {
  EXPECT_EQ(float_to_half(65504.0f), 0x7BFF);
  EXPECT_EQ(float_to_half(std::nextafter(65520.0f, 0.0f)), 0x7BFF);
  EXPECT_EQ(float_to_half(65520.0f), 0x7C00);
  EXPECT_EQ(float_to_half(std::ldexp(1.0f, -25)), 0);  // tie to even
  EXPECT_EQ(float_to_half(std::nextafter(std::ldexp(1.0f, -25), 1.0f)), 1);
  EXPECT_EQ(float_to_half(-0.0f), 0x8000);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::denorm_min()), 0);
}

}  // namespace
}  // namespace geocomm::core
