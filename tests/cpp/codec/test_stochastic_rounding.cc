// Stochastic rounding: unbiased, independent from element to element, a function of seed and index alone.
//
// Limits are 6 standard deviations: 2e-9 per check of a normal variable; with fewer than 400 checks a correct
// generator with a seed drawn at random would fail less than once in a million runs. (The seeds are fixed.)
#include <gtest/gtest.h>

#include "codec/quantizers/block/random_bits.h"
#include "codec_cases.h"

namespace geocomm::codec {
namespace {

constexpr double kSigmas = 6.0;

TEST(RandomBits, test_bits_equal_philox_for_each_element) {
  RandomBits random;
  for (const std::uint64_t first :
       {0ull, 1ull, 7ull, 8ull, 15ull, 1000003ull, (1ull << 35) - 20, (1ull << 40) + 5, ~0ull - 100}) {
    for (const std::size_t count : {1u, 8u, 129u, 4096u}) {
      const std::uint64_t seed = 0x0123456789ABCDEF;
      const std::byte* bits = random.bits(seed, first, count);
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t element = first + i;
        if (element < first) break;  // no index is as large
        const auto words = core::philox4x32(
            {static_cast<std::uint32_t>(element / 8), static_cast<std::uint32_t>((element / 8) >> 32), 0, 0},
            {0x89ABCDEF, 0x01234567});
        const std::uint32_t word = words[element % 8 / 2];
        std::uint16_t actual = 0;
        std::memcpy(&actual, bits + 2 * i, 2);
        ASSERT_EQ(actual, element % 2 == 0 ? word & 0xFFFF : word >> 16) << first << '+' << i;
      }
    }
  }
}

class Stochastic : public testing::TestWithParam<std::string_view> {
 protected:
  const CodecSpec spec_ = spec_of(GetParam());
  const int levels_ = spec_.id == CodecId::Int8 ? 127 : 7;
};

// Each block's first element sets its scale to 1, so that the others decode to integers.
TEST_P(Stochastic, test_mean_of_any_value_is_the_value_and_neighbours_are_independent) {
  constexpr std::size_t kCount = 1 << 17;
  for (const double fraction : {0.5, 0.25, 0.01, 0.999, 1.0 / 3}) {
    for (const int whole : {0, levels_ - 1, -levels_}) {
      const auto value = static_cast<float>(whole + fraction);
      std::vector<float> values(kCount, value);
      for (std::size_t i = 0; i < kCount; i += spec_.block) values[i] = static_cast<float>(levels_);
      const Bytes frame = compressed(spec_, DType::Float32, to_bytes(values), {.seed = 2024});
      const auto decoded = accumulated(frame, kCount);
      double ups = 0;
      double pairs = 0;
      std::size_t counted = 0;
      double last = 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        if (i % spec_.block == 0) {
          ASSERT_EQ(decoded[i], static_cast<float>(levels_));
          last = 0;
          continue;
        }
        const double up = double{decoded[i]} - std::floor(value);
        ASSERT_TRUE(up == 0 || up == 1) << value << " -> " << decoded[i];
        const double deviation = up - (double{value} - std::floor(value));
        ups += deviation;
        pairs += deviation * last;
        last = deviation;
        ++counted;
      }
      const double p = double{value} - std::floor(value);
      const double n = static_cast<double>(counted);
      // The fixed point of 2^-15 moves the mean by at most 2^-16.
      EXPECT_LE(std::abs(ups), kSigmas * std::sqrt(n * p * (1 - p)) + n * std::ldexp(1.0, -16)) << value;
      EXPECT_LE(std::abs(pairs), kSigmas * std::sqrt(n) * p * (1 - p) + n * std::ldexp(1.0, -16)) << value;
    }
  }
}

TEST_P(Stochastic, test_bytes_depend_on_the_index_not_on_the_split) {
  const auto values = gaussian(4096 * 2);
  const Bytes src = to_bytes(values);
  const auto whole =
      accumulated(compressed(spec_, DType::Float32, src, {.seed = 7, .first_element = 100}), 8192);
  const auto head = accumulated(
      compressed(spec_, DType::Float32, std::span(src).first(4 * 4096), {.seed = 7, .first_element = 100}),
      4096);
  const auto tail = accumulated(
      compressed(spec_, DType::Float32, std::span(src).subspan(4 * 4096), {.seed = 7, .first_element = 4196}),
      4096);
  EXPECT_TRUE(same_bits(std::span(whole).first(4096), head));
  EXPECT_TRUE(same_bits(std::span(whole).subspan(4096), tail));
}

TEST_P(Stochastic, test_other_seed_gives_other_bytes) {
  const Bytes src = to_bytes(gaussian(4096));
  const Bytes one = compressed(spec_, DType::Float32, src, {.seed = 1});
  EXPECT_NE(one, compressed(spec_, DType::Float32, src, {.seed = 2}));
  EXPECT_NE(one, compressed(spec_, DType::Float32, src, {.seed = 1ull << 32}));
  EXPECT_NE(one, compressed(spec_, DType::Float32, src, {.seed = 1, .first_element = 1ull << 35}));
}

// The block's largest value is at the end of the code's range whatever the bits.
TEST_P(Stochastic, test_extremes_never_leave_the_range) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const float peak = std::ldexp(1.0f + static_cast<float>(seed) / 211.0f, static_cast<int>(seed) - 100);
    std::vector<float> values(spec_.block, peak);
    for (std::size_t i = 0; i < values.size(); i += 2) values[i] = -peak;
    const auto decoded =
        accumulated(compressed(spec_, DType::Float32, to_bytes(values), {.seed = seed}), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(decoded[i] / values[i], 1.0, 1.01 / levels_);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Stochastic,
                         testing::Values("int8:round=stochastic", "int4:round=stochastic",
                                         "int8:block=64,round=stochastic"),
                         case_name);

}  // namespace
}  // namespace geocomm::codec
