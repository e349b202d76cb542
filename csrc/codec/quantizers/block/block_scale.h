// The arithmetic of the block codecs that is done once per block: scales and constants. That of the elements
// is in block_kernels.h. docs/spec/codecs.md states all of it.
//
// Float throughout, each operation rounded to nearest even, subnormals kept, nothing fused.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "codec/spec/codec_spec.h"
#include "core/half.h"

namespace geocomm::codec {

inline constexpr int kMaxInt8 = 127;
inline constexpr int kMaxInt4 = 7;

// The quantizer of Lloyd and Max for a Gaussian of deviation 1 with four levels: magnitudes, and the
// threshold between them.
inline constexpr float kBit2Low = 0.452780038f;
inline constexpr float kBit2High = 1.51041758f;
inline constexpr float kBit2Threshold = 0.981598794f;

inline constexpr std::uint16_t kMinScaleBits = 0x0080;  // 2^-126: its inverse is finite

// The largest bf16 whose product with the codec's largest level is finite.
constexpr std::uint16_t max_scale_bits(CodecId id) {
  switch (id) {
    case CodecId::Int8:
      return 0x7C01;
    case CodecId::Int4:
      return 0x7E12;
    case CodecId::Bit2:
      return 0x7F29;
    default:
      return 0x7F7F;
  }
}

struct BlockScale {
  std::uint16_t bits = 0;  // bf16
  float scale = 0;
  float inverse = 0;
};

inline BlockScale block_scale(CodecId id, std::uint32_t bits) {
  BlockScale block;
  block.bits = static_cast<std::uint16_t>(
      std::clamp(bits, std::uint32_t{kMinScaleBits}, std::uint32_t{max_scale_bits(id)}));
  block.scale = core::bfloat16_to_float(block.bits);
  block.inverse = 1.0f / block.scale;
  return block;
}

// Int8, Int4: the block's largest magnitude becomes the largest code. `peak_bits`: the pattern of a finite,
// non-negative float.
inline BlockScale scale_of_peak(CodecId id, std::int32_t peak_bits) {
  const float quotient =
      std::bit_cast<float>(peak_bits) / static_cast<float>(id == CodecId::Int8 ? kMaxInt8 : kMaxInt4);
  return block_scale(id, (std::bit_cast<std::uint32_t>(quotient) + 0xFFFFu) >> 16);
}

// Powers of two, inverse to each other, between which values are summed: under `down` the peak lies in [1,
// 4), or under 1 where it is subnormal.
struct MomentRange {
  float down = 1;
  float up = 1;
};
inline MomentRange moment_range(std::int32_t peak_bits) {
  const std::int32_t exponent = std::clamp(peak_bits >> 23, 1, 253);
  return {std::bit_cast<float>((254 - exponent) << 23), std::bit_cast<float>(exponent << 23)};
}

// Bit2: the root of the mean square. Bit1: the mean magnitude. `sum` is of the scaled values.
inline BlockScale scale_of_sum(CodecId id, float sum, std::size_t count, const MomentRange& range) {
  const float mean = sum / static_cast<float>(count);
  const float moment = (id == CodecId::Bit1 ? mean : std::sqrt(mean)) * range.up;
  return block_scale(id, core::float_to_bfloat16(moment));
}

}  // namespace geocomm::codec
