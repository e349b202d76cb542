// What the kernels of Loco share: values at two levels, and records.
#pragma once

#include <cstdint>

#include "codec/cuda/block_place.cuh"
#include "codec/cuda/device.h"
#include "codec/cuda/payload_plan.h"
#include "codec/quantizers/loco/loco_format.h"

namespace geocomm::codec::cuda {

// Values as a sign and one of two magnitudes, which those that a warp has in common share: as loco_levels.cc
// has it. for_quads(run) calls run(values, present) for each four of this lane, of which `present` are there
// (others are 0): the quad's elements are 128 apart from those of the next, so that the 128 partial sums of
// the format are four registers in each lane.

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

// A chunk of Loco and its record, as the device finds them: a warp per chunk.

inline constexpr unsigned kLocoThreads = 256;
inline constexpr unsigned kLocoWarps = kLocoThreads / kWarp;

__device__ __forceinline__ std::uint32_t loco_share(std::uint32_t k, std::uint32_t length) {
  return (k * length + kTopKChunk - 1) / kTopKChunk;
}

// As LocoPlaces has it.
struct PlaceShape {
  std::uint32_t count;
  std::uint32_t low_bits;
  std::uint32_t highs_at;  // bit
  std::uint32_t high_bits;
  std::uint32_t bytes;
};
__device__ __forceinline__ PlaceShape shape_of(std::uint32_t length, std::uint32_t count) {
  PlaceShape shape{};
  shape.count = count;
  shape.low_bits = 31u - static_cast<std::uint32_t>(__clz(static_cast<int>(length / count)));
  shape.highs_at = count * shape.low_bits;
  shape.high_bits = count + ((length - 1) >> shape.low_bits);
  shape.bytes = (shape.highs_at + shape.high_bits + 7) / 8;
  return shape;
}

__device__ __forceinline__ std::uint32_t record_bytes_of(std::uint32_t length, std::uint32_t count) {
  return static_cast<std::uint32_t>(sizeof(LocoLevels)) + shape_of(length, count).bytes + (count + 3) / 4;
}
// Of a whole chunk.
__device__ __forceinline__ std::uint32_t record_bytes_of(std::uint32_t k) {
  return record_bytes_of(kTopKChunk, k);
}
// Of all records of a frame.
__device__ __forceinline__ std::uint32_t records_bytes_of(std::uint32_t k, std::uint32_t elements) {
  const std::uint32_t rest = elements % kTopKChunk;
  return elements / kTopKChunk * record_bytes_of(k) +
         (rest == 0 ? 0 : record_bytes_of(rest, loco_share(k, rest)));
}

struct LocoChunk {
  std::uint32_t frame;
  std::uint32_t index;   // in the frame
  std::uint32_t length;  // elements
  std::uint32_t begin;   // element, of the frame
};

__device__ __forceinline__ std::uint32_t chunks_of(std::uint32_t elements) {
  return (elements + kTopKChunk - 1) / kTopKChunk;
}
// Of a frame of so many elements, which has it.
__device__ __forceinline__ LocoChunk chunk_at(std::uint32_t frame, std::uint32_t index,
                                              std::uint32_t elements) {
  const std::uint32_t begin = index * kTopKChunk;
  const std::uint32_t left = elements - begin;
  return {frame, index, left < kTopKChunk ? left : kTopKChunk, begin};
}

// This warp's. False for all its lanes: there is none.
__device__ __forceinline__ bool find_chunk(const PayloadPlan& plan, LocoChunk& chunk) {
  const std::uint64_t element = (std::uint64_t{blockIdx.x} * kLocoWarps + threadIdx.x / kWarp) * kTopKChunk;
  if (element >= plan.elements) return false;
  const std::uint32_t index = plan.frame_of_element(element);
  const std::uint32_t frame = plan.first_frame + index;
  const auto begin = static_cast<std::uint32_t>(element - index * plan.frame_elements);
  const std::uint32_t elements = plan.extent(frame).elements;
  if (begin >= elements) return false;
  chunk = chunk_at(frame, begin / kTopKChunk, elements);
  return true;
}

inline Grid grid_of_chunks(const PayloadPlan& plan) {
  return one_thread_each((plan.elements + kTopKChunk - 1) / kTopKChunk * kWarp, kLocoThreads);
}

}  // namespace geocomm::codec::cuda
