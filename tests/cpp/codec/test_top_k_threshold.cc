#include <gtest/gtest.h>

#include "codec/payload/payload.h"
#include "codec/quantizers/top_k/top_k_threshold.h"
#include "top_k_cases.h"

namespace geocomm::codec {
namespace {

const CodecSpec& global_spec() {
  static const CodecSpec spec = spec_of("topk:k=64,select=global");
  return spec;
}

// Elements chosen, over the share that was asked for.
double achieved(const CodecSpec& spec, std::span<const float> values, float& threshold) {
  const Bytes frame = compressed(spec, DType::Float32, to_bytes(values), {.threshold = &threshold});
  const double target = static_cast<double>(values.size()) * spec.k / kTopKChunk;
  return head_of(frame).count / target;
}

// Magnitudes of an exponential, and of a much heavier tail.
std::vector<float> laplacian(std::size_t count, std::uint32_t seed) {
  auto values = gaussian(count, 1.0f, seed);
  const auto other = gaussian(count, 1.0f, seed + 1000);
  for (std::size_t i = 0; i < count; ++i) values[i] *= std::sqrt(std::abs(other[i]));
  return values;
}
std::vector<float> heavy(std::size_t count, std::uint32_t seed) {
  auto values = gaussian(count, 1.0f, seed);
  for (float& value : values) value = value * value * value * value * value;
  return values;
}

TEST(TopKThreshold, test_cold_start_finds_the_share_by_sampling) {
  for (const std::uint32_t k : {4u, 64u, 512u, 2048u}) {
    CodecSpec spec = global_spec();
    spec.k = k;
    for (const std::size_t length : {4096u, 100000u, 1u << 18, 1u << 20}) {
      for (const auto& values : {gaussian(length), laplacian(length, 2), heavy(length, 3)}) {
        float threshold = 0.0f;
        const double share = achieved(spec, values, threshold);
        // The sample has k/4096 of at least min(length, 16 Ki) elements above it: five deviations.
        const double in_sample = std::min<double>(static_cast<double>(length) / 16, 65536) * k / 4096;
        const double slack = 5 / std::sqrt(std::max(in_sample, 1.0));
        EXPECT_GE(share, std::max(1 - slack, 0.0)) << k << ' ' << length;
        EXPECT_LE(share, std::min(1 + slack, 16.0)) << k << ' ' << length;
        EXPECT_GT(threshold, 0.0f);
      }
    }
  }
}

TEST(TopKThreshold, test_any_start_converges_within_a_few_calls) {
  constexpr std::size_t kLength = 1 << 18;
  for (const std::uint32_t k : {8u, 64u, 410u}) {
    CodecSpec spec = global_spec();
    spec.k = k;
    for (int kind = 0; kind < 3; ++kind) {
      const auto values = kind == 0   ? gaussian(kLength)
                          : kind == 1 ? laplacian(kLength, 5)
                                      : heavy(kLength, 6);
      float right = 0.0f;
      for (int call = 0; call < 12; ++call) achieved(spec, values, right);
      for (const float factor : {10.0f, 0.1f, 3.0f, 0.3f, 1e10f, 1e-10f, 1.5f}) {
        float threshold = right * factor;
        for (int call = 0; call < 5; ++call) achieved(spec, values, threshold);
        const double share = achieved(spec, values, threshold);
        EXPECT_NEAR(share, 1.0, kind == 2 ? 0.6 : 0.2) << k << ' ' << kind << ' ' << factor;
      }
    }
  }
}

// Fresh data each call, with a slow drift: the share stays near 1, without oscillation.
TEST(TopKThreshold, test_correction_is_stable) {
  float threshold = 0.0f;
  for (std::uint32_t call = 0; call < 60; ++call) {
    auto values = laplacian(40000, call);
    for (float& value : values) value *= std::exp(0.02f * static_cast<float>(call));
    const double share = achieved(global_spec(), values, threshold);
    if (call >= 5) {
      EXPECT_NEAR(share, 1.0, 0.35) << call;
    }
  }
}

TEST(TopKThreshold, test_short_inputs_never_fall_silent) {
  for (const std::size_t length : {1u, 5u, 50u, 200u}) {
    const auto values = gaussian(length);
    std::vector<float> residual(length, 0.0f);
    float threshold = 0.0f;
    std::size_t sent = 0;
    for (int call = 0; call < 200; ++call) {
      const Bytes frame = compressed(global_spec(), DType::Float32, to_bytes(values),
                                     {.feedback = feedback(residual), .threshold = &threshold});
      sent += head_of(frame).count;
    }
    EXPECT_GE(sent, 40u) << length;
    EXPECT_LE(sent, 200 * std::max<std::size_t>(length / 8, 2)) << length;
  }
}

TEST(TopKThreshold, test_values_that_are_no_threshold_mean_a_cold_start) {
  const auto values = gaussian(20000);
  float cold = 0.0f;
  achieved(global_spec(), values, cold);
  for (float threshold : {-1.0f, -0.0f, kNan, kInf, -kInf}) {
    achieved(global_spec(), values, threshold);
    EXPECT_EQ(threshold, cold);
  }
}

TEST(TopKThreshold, test_zeros_choose_nothing_and_recover_at_once) {
  float threshold = 0.0f;
  EXPECT_EQ(achieved(global_spec(), std::vector<float>(50000, 0.0f), threshold), 0.0);
  EXPECT_EQ(achieved(global_spec(), std::vector<float>(50000, 0.0f), threshold), 0.0);
  const auto values = gaussian(50000);
  for (int call = 0; call < 3; ++call) achieved(global_spec(), values, threshold);
  EXPECT_NEAR(achieved(global_spec(), values, threshold), 1.0, 0.2);
}

TEST(TopKThreshold, test_chunk_selection_leaves_the_threshold) {
  float threshold = 0.125f;
  compressed(spec_of("topk"), DType::Float32, to_bytes(gaussian(5000)), {.threshold = &threshold});
  EXPECT_EQ(threshold, 0.125f);
}

TEST(TopKThreshold, test_error_leaves_the_threshold) {
  float threshold = 0.125f;
  Bytes dst(10);
  EXPECT_FALSE(
      compress(global_spec(), DType::Float32, to_bytes(gaussian(5000)), dst, {.threshold = &threshold})
          .is_ok());
  EXPECT_EQ(threshold, 0.125f);
}

}  // namespace
}  // namespace geocomm::codec
