#include "collective/outer/element_scales.h"

#include <algorithm>
#include <bit>

#include "core/float_rules.h"

namespace geocomm::collective {
namespace {

constexpr int kExponentShift = 23;
constexpr std::int32_t kExponentMask = 0x7F800000;
constexpr std::int32_t kExponentBias = 127;

}  // namespace

void learn_squares(std::span<const float> values, float keep, float gain, std::span<float> mean_square) {
  const core::FloatRules rules;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float square = values[i] * values[i];
    mean_square[i] = mean_square[i] * keep + square * gain;
  }
}

std::int32_t mean_exponent(std::span<const float> values) {
  constexpr std::size_t kRun = 4096;  // whose sum fits in 32 bits by far
  std::int64_t sum = 0;
  std::int64_t count = 0;
  for (std::size_t first = 0; first < values.size(); first += kRun) {
    std::int32_t run_sum = 0;
    std::int32_t run_count = 0;
    for (const float value : values.subspan(first, std::min(kRun, values.size() - first))) {
      const std::int32_t exponent = (std::bit_cast<std::int32_t>(value) & kExponentMask) >> kExponentShift;
      run_sum += exponent;
      run_count += exponent > 0 ? 1 : 0;
    }
    sum += run_sum;
    count += run_count;
  }
  return count > 0 ? static_cast<std::int32_t>(sum / count) : kExponentBias;
}

void scales_from(std::span<const float> mean_square, std::int32_t floor_exponent, std::span<float> scale) {
  // Half of an exponent is its root's.
  constexpr std::int32_t kHalfBias = (kExponentBias << kExponentShift) >> 1;
  const std::int32_t floor = floor_exponent << kExponentShift;
  for (std::size_t i = 0; i < mean_square.size(); ++i) {
    const std::int32_t root = (std::bit_cast<std::int32_t>(mean_square[i]) >> 1) + kHalfBias;
    scale[i] = std::bit_cast<float>(std::max(root & kExponentMask, floor));
  }
}

}  // namespace geocomm::collective
