// Values as a sign and one of two magnitudes, which those that a warp has in common share: as loco_levels.cc
// has it. for_quads(run) calls run(values, present) for each four of this lane, of which `present` are there
// (others are 0): the quad's elements are 128 apart from those of the next, so that the 128 partial sums of
// the format are four registers in each lane.
#pragma once

#include <cstdint>

#include "codec/cuda/block_place.cuh"
#include "codec/cuda/device.h"

namespace geocomm::codec::cuda {

struct Levels {
  std::uint32_t low;  // bf16; kRawScale: the values are raw
  std::uint32_t high;

  // Of a code's two lowest bits: which magnitude, and the sign.
  __device__ __forceinline__ float value(std::uint32_t code) const {
    return __uint_as_float(((code & 1) != 0 ? high : low) << 16 | (code >> 1 & 1) << 31);
  }
};

// As LocoRule.
struct LevelRule {
  PeakRange range;
  float sum;
  float squares;

  __device__ __forceinline__ float scaled(float value) const {
    return __fmul_rn(__uint_as_float(__float_as_uint(value) & kMagnitude), range.down);
  }
  __device__ __forceinline__ bool is_high(float t) const { return __fmul_rn(t, sum) >= squares; }
  __device__ __forceinline__ std::uint32_t code_of(float value) const {
    return (is_high(scaled(value)) ? 1u : 0u) | __float_as_uint(value) >> 31 << 1;
  }
};

// `mean`: the bound is that of the magnitudes of `count` values; else the sum of the squares over the sum.
template <bool kMean, typename ForQuads>
__device__ LevelRule find_rule(const ForQuads& for_quads, std::uint32_t count, std::uint32_t peak) {
  LevelRule rule{peak_range(peak), 1.0f, 0.0f};
  Quad sums{};
  Quad squares{};
  for_quads([&](const Quad& values, unsigned) {
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      const float t = rule.scaled(values.v[c]);
      sums.v[c] = __fadd_rn(sums.v[c], t);
      if constexpr (!kMean) squares.v[c] = __fadd_rn(squares.v[c], __fmul_rn(t, t));
    }
  });
  const float sum = fold(sums, kWarp);
  if constexpr (kMean) {
    rule.squares = __fdiv_rn(sum, static_cast<float>(count));
  } else {
    rule.sum = sum;
    rule.squares = fold(squares, kWarp);
  }
  return rule;
}

__device__ inline std::uint32_t level_of(float sum, std::uint32_t members, float up) {
  if (members == 0) return 0;
  const float level = __fmul_rn(__fdiv_rn(sum, static_cast<float>(members)), up);
  return narrow_saturated<core::DType::BFloat16>(level);
}

template <typename ForQuads>
__device__ Levels find_levels(const ForQuads& for_quads, std::uint32_t count, const LevelRule& rule) {
  Quad low{};
  Quad high{};
  std::uint32_t above = 0;
  for_quads([&](const Quad& values, unsigned present) {
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      const float t = rule.scaled(values.v[c]);
      const bool is_high = c < present && rule.is_high(t);
      high.v[c] = __fadd_rn(high.v[c], is_high ? t : 0.0f);
      low.v[c] = __fadd_rn(low.v[c], is_high ? 0.0f : t);
      above += is_high ? 1 : 0;
    }
  });
  above = __reduce_add_sync(kFullMask, above);
  const float high_sum = fold(high, kWarp);
  const float low_sum = fold(low, kWarp);
  return {level_of(low_sum, count - above, rule.range.up), level_of(high_sum, above, rule.range.up)};
}

}  // namespace geocomm::codec::cuda
