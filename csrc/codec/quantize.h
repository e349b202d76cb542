// The arithmetic of Int8 and Int4 on one block: the reference that every fast path equals bit for bit.
//
// All of it is IEEE float, each operation rounded to nearest even, subnormals kept, nothing fused:
//   peak    = max |v|                     v = input (+ residual); NaN or Inf in the block: it is raw
//   scale   = peak / kMax, rounded up to bf16, at least 2^-126, at most max_scale_bits(): kMax * scale is
//   finite inverse = 1 / scale nearest:    q = rint(v * inverse) stochastic: q = floor((rint(v * inverse *
//   2^15) + r) / 2^15), clamped to [-kMax, kMax]; r: 15 random bits decoded = q * scale exact: 7 + 8
//   significant bits residual = v - decoded
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "codec/block_layout.h"
#include "codec/elements.h"
#include "core/half.h"

namespace geocomm::codec {

inline constexpr int kMaxInt8 = 127;
inline constexpr int kMaxInt4 = 7;
inline constexpr std::uint16_t kMinScaleBits = 0x0080;  // 2^-126: its inverse is finite, its products normal

// The largest bf16 whose product with kMax is finite: 129/128 * 2^121 and 146/128 * 2^125.
template <int kMax>
constexpr std::uint16_t max_scale_bits() {
  return kMax == kMaxInt8 ? 0x7C01 : 0x7E12;
}

struct BlockScale {
  std::uint16_t bits = 0;  // bf16
  float scale = 0;
  float inverse = 0;
};

// `peak_bits`: the pattern of a finite, non-negative float.
template <int kMax>
BlockScale scale_of(std::int32_t peak_bits) {
  const float quotient = std::bit_cast<float>(peak_bits) / static_cast<float>(kMax);
  const std::uint32_t up = (std::bit_cast<std::uint32_t>(quotient) + 0xFFFFu) >> 16;
  BlockScale block;
  block.bits = static_cast<std::uint16_t>(
      std::clamp(up, std::uint32_t{kMinScaleBits}, std::uint32_t{max_scale_bits<kMax>()}));
  block.scale = core::bfloat16_to_float(block.bits);
  block.inverse = 1.0f / block.scale;
  return block;
}

// values = input (+ residual); returns the largest magnitude as a bit pattern, kFloatInfBits or more if one
// is Inf or NaN.
template <core::DType kType, bool kFeedback>
std::int32_t load_block(const std::byte* __restrict src, const float* __restrict residual, std::size_t count,
                        float* __restrict values) {
  std::int32_t peak = 0;
  for (std::size_t i = 0; i < count; ++i) {
    float value = load_element<kType>(src, i);
    if constexpr (kFeedback) value += residual[i];
    values[i] = value;
    peak = std::max(peak, std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF);
  }
  return peak;
}

// 1.5 * 2^23: adding it rounds |v| < 2^22 to an integer, nearest even, that stands in the low bits.
inline constexpr float kRintMagic = 12582912.0f;
inline std::int32_t rint_to_int(float value) {
  return std::bit_cast<std::int32_t>(value + kRintMagic) - std::bit_cast<std::int32_t>(kRintMagic);
}

inline constexpr int kRandomBits = 15;

// `random` (Stochastic only) holds 16 bits per element, of which the upper 15 count. Writes one code per
// byte.
template <int kMax, Rounding kRounding, bool kFeedback>
void quantize_block(const float* __restrict values, std::size_t count, const BlockScale& block,
                    const std::uint16_t* __restrict random, std::int8_t* __restrict codes,
                    float* __restrict residual) {
  const float scale = block.scale;
  const float inverse = block.inverse;
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t code;
    if constexpr (kRounding == Rounding::Nearest) {
      code = rint_to_int(values[i] * inverse);
    } else {
      const std::int32_t fixed = rint_to_int(values[i] * inverse * static_cast<float>(1 << kRandomBits));
      code = (fixed + (random[i] >> 1)) >> kRandomBits;
      code = std::clamp(code, -kMax, kMax);
    }
    codes[i] = static_cast<std::int8_t>(code);
    if constexpr (kFeedback) residual[i] = values[i] - static_cast<float>(code) * scale;
  }
}

// Two codes per byte: byte i holds element i in its low and element i + ceil(count / 2) in its high half.
inline void pack_int4(const std::int8_t* __restrict codes, std::size_t count, std::byte* __restrict packed) {
  const std::size_t low = (count + 1) / 2;
  const std::size_t high = count - low;
  for (std::size_t i = 0; i < high; ++i) {
    packed[i] = static_cast<std::byte>((codes[i] & 0x0F) | (codes[low + i] << 4));
  }
  if (high < low) packed[high] = static_cast<std::byte>(codes[high] & 0x0F);
}

template <Sink kSink>
void dequantize_int8(const std::byte* __restrict codes, std::size_t count, float scale,
                     std::byte* __restrict dst) {
  for (std::size_t i = 0; i < count; ++i) {
    put<kSink>(dst, i, static_cast<float>(static_cast<std::int8_t>(codes[i])) * scale);
  }
}

template <Sink kSink>
void dequantize_int4(const std::byte* __restrict packed, std::size_t count, float scale,
                     std::byte* __restrict dst) {
  const std::size_t low = (count + 1) / 2;
  for (std::size_t i = 0; i < low; ++i) {
    const auto code = static_cast<std::int32_t>(static_cast<std::uint32_t>(packed[i]) << 28) >> 28;
    put<kSink>(dst, i, static_cast<float>(code) * scale);
  }
  std::byte* __restrict upper = dst + low * element_bytes(kSink);
  for (std::size_t i = 0; i < count - low; ++i) {
    const int code = static_cast<std::int8_t>(packed[i]) >> 4;
    put<kSink>(upper, i, static_cast<float>(code) * scale);
  }
}

}  // namespace geocomm::codec
