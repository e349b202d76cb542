#include <gtest/gtest.h>

#include <bit>

#include "codec_cases.h"
#include "level_cases.h"

namespace geocomm::codec {
namespace {

class Feedback : public testing::TestWithParam<std::string_view> {
 protected:
  const CodecSpec spec_ = spec_of(GetParam());
};

TEST_P(Feedback, test_new_residual_is_what_the_frame_lost) {
  for (const DType dtype : kFloatTypes) {
    for (const std::size_t length : {0, 1, 255, 256, 1003}) {
      const Bytes src = to_bytes(gaussian(length), dtype);
      const auto values = to_floats(src, dtype);
      const auto old = gaussian(length, 0.01f, 5);
      auto residual = old;
      const Bytes frame = compressed(spec_, dtype, src, {.feedback = feedback(residual), .seed = 3});
      const auto decoded = accumulated(frame, length);
      for (std::size_t i = 0; i < length; ++i) {
        const float sum = values[i] + old[i];
        ASSERT_EQ(residual[i], sum - decoded[i]) << core::to_string(dtype) << ' ' << i;
      }
    }
  }
}

TEST_P(Feedback, test_bfloat16_residual_and_decay_are_what_the_contract_says) {
  constexpr float kDecay = 0.9f;
  for (const DType dtype : kFloatTypes) {
    for (const std::size_t length : {1, 255, 1003}) {
      const Bytes src = to_bytes(gaussian(length), dtype);
      const auto values = to_floats(src, dtype);
      Bytes residual = to_bytes(gaussian(length, 0.01f, 5), DType::BFloat16);
      const auto old = to_floats(residual, DType::BFloat16);
      const ErrorFeedback feedback{residual.data(), DType::BFloat16, length, kDecay};
      const auto decoded =
          accumulated(compressed(spec_, dtype, src, {.feedback = feedback, .seed = 3}), length);
      const auto kept = to_floats(residual, DType::BFloat16);
      for (std::size_t i = 0; i < length; ++i) {
        const float carried = kDecay * old[i];
        const float value = values[i] + carried;
        ASSERT_EQ(kept[i], core::bfloat16_to_float(core::float_to_bfloat16(value - decoded[i]))) << i;
      }
    }
  }
}

TEST_P(Feedback, test_bfloat16_residual_of_huge_values_stays_finite) {
  std::vector<float> values(256, 1.0f);
  values[7] = std::numeric_limits<float>::max();
  values[64] = -std::numeric_limits<float>::max();
  Bytes residual(2 * values.size());
  const ErrorFeedback feedback{residual.data(), DType::BFloat16, values.size()};
  compressed(spec_, DType::Float32, to_bytes(values), {.feedback = feedback});
  for (const float kept : to_floats(residual, DType::BFloat16)) ASSERT_TRUE(std::isfinite(kept)) << kept;
}

TEST_P(Feedback, test_residual_of_zeros_gives_the_bytes_of_none) {
  const Bytes src = to_bytes(gaussian(1000));
  std::vector<float> residual(1000, 0.0f);
  EXPECT_EQ(compressed(spec_, DType::Float32, src, {.feedback = feedback(residual), .seed = 9}),
            compressed(spec_, DType::Float32, src, {.seed = 9}));
}

// Over many rounds what arrived differs from what was sent by the last residual alone.
TEST_P(Feedback, test_rounds_of_the_same_input_lose_nothing_in_sum) {
  constexpr std::size_t kLength = 600;
  constexpr int kRounds = 50;
  const auto values = gaussian(kLength);
  const Bytes src = to_bytes(values);
  std::vector<float> residual(kLength, 0.0f);
  std::vector<double> arrived(kLength, 0.0);
  for (int round = 0; round < kRounds; ++round) {
    const Bytes frame =
        compressed(spec_, DType::Float32, src,
                   {.feedback = feedback(residual), .seed = static_cast<std::uint64_t>(round)});
    const auto decoded = accumulated(frame, kLength);
    for (std::size_t i = 0; i < kLength; ++i) arrived[i] += decoded[i];
  }
  // What waits stays within a few steps of the quantizer, few as its levels may be.
  const float most = spec_.id >= CodecId::Bit2 && spec_.id <= CodecId::Bit1 ? 64.0f : 1.5f;
  for (std::size_t i = 0; i < kLength; ++i) {
    // Each round may round the sum and the difference once, at a magnitude of at most `most` + 16.
    ASSERT_NEAR(arrived[i] + residual[i], kRounds * double{values[i]}, kRounds * 4e-6);
    ASSERT_LE(std::abs(residual[i]), most);
  }
}

TEST_P(Feedback, test_nan_and_inf_leave_a_residual_of_zero_and_no_trace) {
  auto values = gaussian(600);
  values[10] = kNan;
  values[11] = kInf;
  auto residual = gaussian(600, 0.01f, 2);
  residual[300] = kNan;  // a caller's broken residual heals
  const auto old = residual;
  const Bytes frame = compressed(spec_, DType::Float32, to_bytes(values), {.feedback = feedback(residual)});
  const auto decoded = accumulated(frame, 600);
  EXPECT_TRUE(std::isnan(decoded[10]));
  EXPECT_EQ(decoded[11], kInf);
  EXPECT_TRUE(std::isnan(decoded[300]));
  for (const std::size_t i : {10u, 11u, 300u}) EXPECT_EQ(residual[i], 0.0f);
  for (std::size_t i = 0; i < 600; ++i) {
    ASSERT_TRUE(std::isfinite(residual[i]));
    if (!std::isfinite(decoded[i])) continue;
    ASSERT_EQ(residual[i], (values[i] + old[i]) - decoded[i]);
  }
}

// A raw block of a 16-bit dtype is rounded to it, and saturates: the rest stays in the residual.
// Which of two NaN an addition keeps is up to the compiler, and must not be seen.
TEST_P(Feedback, test_nan_of_the_input_wins_over_that_of_the_residual_at_every_level) {
  auto values = gaussian(600);
  std::vector<float> residual(600, 0.5f);
  for (const std::size_t i : {3u, 200u, 599u}) {
    values[i] = std::bit_cast<float>(0xFFC0F000u);
    residual[i] = std::bit_cast<float>(0x7FA50000u);
  }
  for (const DType dtype : kFloatTypes) {
    Bytes old = to_bytes(residual);
    const ErrorFeedback feedback{old.data(), DType::Float32, values.size(), 0.5f};
    const Bytes src = to_bytes(values, dtype);
    expect_same_at_every_level(spec_, dtype, src, feedback);
    const float arrived = run_frame(spec_, dtype, src, feedback, 0).assigned[200];
    EXPECT_TRUE(std::isnan(arrived));
    EXPECT_TRUE(std::signbit(arrived));
  }
}

TEST_P(Feedback, test_raw_16_bit_values_keep_what_rounding_lost) {
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    std::vector<float> values(100, 1.0f);
    values[0] = kInf;
    values[1] = dtype == DType::Float16 ? 65504.0f : core::bfloat16_to_float(0x7F7F);
    std::vector<float> old(100, 1e-4f);
    old[1] = values[1] / 256;
    auto residual = old;
    const Bytes frame = compressed(spec_, dtype, to_bytes(values, dtype), {.feedback = feedback(residual)});
    const auto decoded = accumulated(frame, 100);
    EXPECT_EQ(decoded[0], kInf);
    EXPECT_EQ(residual[0], 0.0f);
    for (std::size_t i = 1; i < 100; ++i) {
      ASSERT_TRUE(std::isfinite(decoded[i]));
      ASSERT_EQ(residual[i], (values[i] + old[i]) - decoded[i]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Feedback, testing::ValuesIn(kAllSpecs), case_name);

}  // namespace
}  // namespace geocomm::codec
