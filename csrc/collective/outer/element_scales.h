// Powers of two near the usual magnitude of each element, learned from what an all-reduce gave: what
// geocomm/sync/gradients/bucket_reduction.py does with torch's operations on other devices, bit for bit.
//
// Each operation is rounded to float and none fused; what looks at all elements sums integers. So ranks with
// other processors, or other parts of the same buffer, come to the same scales. Plain loops: they run at the
// speed of memory. Thread-safe, no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace geocomm::collective {

// mean_square = mean_square * keep + value * value * gain; as many of each.
void learn_squares(std::span<const float> values, float keep, float gain, std::span<float> mean_square);

// The mean of the exponents, biased as in float, of the elements that are not zero or subnormal, rounded
// down; the bias where all are.
std::int32_t mean_exponent(std::span<const float> values);

// scale = the power of two at the root of each mean square, but at least 2^(floor_exponent - the bias). As
// many of each; mean squares are not negative; floor_exponent is from 1 to 254.
void scales_from(std::span<const float> mean_square, std::int32_t floor_exponent, std::span<float> scale);

}  // namespace geocomm::collective
