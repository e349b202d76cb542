// The block codecs as a warp sees them: scale of a block, codes of four elements at a time (one per byte of a
// word), packing of the codes that the warp has laid out in shared memory. The arithmetic is that of
// block_scale.h.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"
#include "codec/quantizers/block/block_layout.h"
#include "codec/quantizers/block/block_scale.h"
#include "codec/spec/codec_spec.h"

namespace geocomm::codec::cuda {

struct Scale {
  std::uint32_t bits;  // bf16
  float value;
};

template <CodecId kId>
inline constexpr std::uint32_t kLargestScale = max_scale_bits(kId);

// `bits` brought into the codec's range.
template <CodecId kId>
__device__ __forceinline__ Scale clamped_scale(std::uint32_t bits) {
  bits = bits < kMinScaleBits ? kMinScaleBits : bits > kLargestScale<kId> ? kLargestScale<kId> : bits;
  return {bits, bfloat16_bits_to_float(bits)};
}

template <CodecId kId>
__device__ __forceinline__ bool is_valid_scale(std::uint32_t bits) {
  return bits >= kMinScaleBits && bits <= kLargestScale<kId>;
}

// 1.5 * 2^23: adding it rounds |v| < 2^22 to an integer, nearest even, that stands in the low bits.
inline constexpr float kRoundingMagic = 12582912.0f;
inline constexpr std::uint32_t kRoundingMagicBits = 0x4B400000;

// The low bytes of four words.
__device__ __forceinline__ std::uint32_t low_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                                   std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

__device__ __forceinline__ std::uint32_t word_at(const std::uint8_t* shared, unsigned offset) {
  return *reinterpret_cast<const std::uint32_t*>(shared + offset);
}

// Byte c of `word` as a float, counted from -kBias: 2^23 + byte stands in a float's low bits.
template <unsigned kBias>
__device__ __forceinline__ Quad bytes_to_floats(std::uint32_t word) {
  constexpr float kOffset = 8388608.0f + kBias;
  return {{__fsub_rn(__uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440)), kOffset),
           __fsub_rn(__uint_as_float(__byte_perm(word, 0x4B000000u, 0x7441)), kOffset),
           __fsub_rn(__uint_as_float(__byte_perm(word, 0x4B000000u, 0x7442)), kOffset),
           __fsub_rn(__uint_as_float(__byte_perm(word, 0x4B000000u, 0x7443)), kOffset)}};
}

__device__ __forceinline__ void put_word(std::uint8_t* shared, unsigned offset, std::uint32_t word) {
  *reinterpret_cast<std::uint32_t*>(shared + offset) = word;
}

// What the coders have in common: a byte holds the codes i, i + n, i + 2 n, ... of a block of n packed bytes,
// kBits each from its low end (Bit1 differs).
template <CodecId kCodecId, unsigned kBits>
struct SplitCoder {
  static constexpr CodecId kId = kCodecId;
  static constexpr unsigned kParts = 8 / kBits;
  static constexpr std::uint32_t kCodeMask = ((1u << kBits) - 1) * 0x01010101u;

  static __device__ __forceinline__ unsigned packed_bytes(unsigned length) {
    return (length + kParts - 1) / kParts;
  }
  // Four packed bytes from `index` on of `n`, if both are multiples of 4.
  static __device__ __forceinline__ std::uint32_t pack_word(const std::uint8_t* codes, unsigned index,
                                                            unsigned n) {
    std::uint32_t packed = 0;
#pragma unroll
    for (unsigned part = 0; part < kParts; ++part) {
      packed |= word_at(codes, index + part * n) << (part * kBits);
    }
    return packed;
  }
  static __device__ __forceinline__ std::uint32_t pack_byte(const std::uint8_t* codes, unsigned index,
                                                            unsigned n) {
    std::uint32_t packed = 0;
#pragma unroll
    for (unsigned part = 0; part < kParts; ++part) {
      packed |= std::uint32_t{codes[index + part * n]} << (part * kBits);
    }
    return packed;
  }
  static __device__ __forceinline__ void unpack_word(std::uint32_t packed, std::uint8_t* codes,
                                                     unsigned index, unsigned n) {
#pragma unroll
    for (unsigned part = 0; part < kParts; ++part) {
      put_word(codes, index + part * n, packed >> (part * kBits) & kCodeMask);
    }
  }
  static __device__ __forceinline__ void unpack_byte(std::uint32_t packed, std::uint8_t* codes,
                                                     unsigned index, unsigned n) {
#pragma unroll
    for (unsigned part = 0; part < kParts; ++part) {
      codes[index + part * n] = static_cast<std::uint8_t>(packed >> (part * kBits) & kCodeMask);
    }
  }
};

// Int8 and Int4. Codes are in two's complement, as wide as they are on the wire.
template <CodecId kCodecId>
struct IntCoder : SplitCoder<kCodecId, kCodecId == CodecId::Int8 ? 8 : 4> {
  using Base = SplitCoder<kCodecId, kCodecId == CodecId::Int8 ? 8 : 4>;
  static constexpr int kMax = kCodecId == CodecId::Int8 ? kMaxInt8 : kMaxInt4;
  static constexpr std::uint32_t kSigns = 0x01010101u * (kMax + 1);
  static constexpr bool kNeedsSum = false;
  static constexpr bool kHasRounding = true;

  static __device__ __forceinline__ Scale scale_of_peak(std::uint32_t peak) {
    const float quotient = __fdiv_rn(__uint_as_float(peak), static_cast<float>(kMax));
    return clamped_scale<kCodecId>((__float_as_uint(quotient) + 0xFFFFu) >> 16);
  }

  static __device__ __forceinline__ std::uint32_t codes(const Quad& values, const Scale& scale) {
    const float inverse = __fdiv_rn(1.0f, scale.value);
    std::uint32_t code[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      code[c] = __float_as_uint(__fadd_rn(__fmul_rn(values.v[c], inverse), kRoundingMagic));
    }
    return low_bytes(code[0], code[1], code[2], code[3]) & Base::kCodeMask;
  }

  // `random`: 16 bits per element, of which the upper 15 count.
  static __device__ __forceinline__ std::uint32_t codes_stochastic(const Quad& values, const Scale& scale,
                                                                   const uint2& random) {
    const float inverse = __fdiv_rn(1.0f, scale.value);
    const std::uint32_t bits[4] = {random.x & 0xFFFFu, random.x >> 16, random.y & 0xFFFFu, random.y >> 16};
    std::uint32_t code[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float scaled = __fmul_rn(__fmul_rn(values.v[c], inverse), 32768.0f);
      const auto fixed =
          static_cast<std::int32_t>(__float_as_uint(__fadd_rn(scaled, kRoundingMagic)) - kRoundingMagicBits);
      const std::int32_t rounded = (fixed + static_cast<std::int32_t>(bits[c] >> 1)) >> 15;
      code[c] = static_cast<std::uint32_t>(rounded > kMax ? kMax : rounded < -kMax ? -kMax : rounded);
    }
    return low_bytes(code[0], code[1], code[2], code[3]) & Base::kCodeMask;
  }

  static __device__ __forceinline__ Quad decoded(std::uint32_t codes, const Scale& scale) {
    Quad quad = bytes_to_floats<kMax + 1>(codes ^ kSigns);
#pragma unroll
    for (int c = 0; c < 4; ++c) quad.v[c] = __fmul_rn(quad.v[c], scale.value);
    return quad;
  }
};

// Sums of the block's values, brought to where nothing overflows by a power of two: those of the squares
// (rms), or of the magnitudes.
template <CodecId kCodecId, bool kSquares>
struct MomentScale {
  static constexpr bool kNeedsSum = true;
  static constexpr bool kHasRounding = false;

  static __device__ __forceinline__ void add(const Quad& values, std::uint32_t peak, Quad& sums) {
    const float down = peak_range(peak).down;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float scaled = __fmul_rn(values.v[c], down);
      const float term =
          kSquares ? __fmul_rn(scaled, scaled) : __uint_as_float(__float_as_uint(scaled) & kMagnitude);
      sums.v[c] = __fadd_rn(sums.v[c], term);
    }
  }
  static __device__ __forceinline__ Scale scale_of_sum(float sum, std::uint32_t peak, unsigned length) {
    const float mean = __fdiv_rn(sum, static_cast<float>(length));
    const float moment = __fmul_rn(kSquares ? __fsqrt_rn(mean) : mean, peak_range(peak).up);
    return clamped_scale<kCodecId>(float_to_bfloat16_bits(moment));
  }
};

// Codes: 2 * negative + large.
struct Bit2Coder : SplitCoder<CodecId::Bit2, 2>, MomentScale<CodecId::Bit2, true> {
  static __device__ __forceinline__ std::uint32_t codes(const Quad& values, const Scale& scale) {
    const float threshold = __fmul_rn(kBit2Threshold, scale.value);
    std::uint32_t codes = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const std::uint32_t bits = __float_as_uint(values.v[c]);
      const std::uint32_t large = __uint_as_float(bits & kMagnitude) >= threshold ? 1u : 0u;
      codes |= (bits >> 31 << 1 | large) << 8 * c;
    }
    return codes;
  }

  static __device__ __forceinline__ Quad decoded(std::uint32_t codes, const Scale& scale) {
    const float low = __fmul_rn(kBit2Low, scale.value);
    const float high = __fmul_rn(kBit2High, scale.value);
    Quad quad;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const std::uint32_t code = codes >> 8 * c;
      const float magnitude = (code & 1u) != 0 ? high : low;
      quad.v[c] = __uint_as_float(__float_as_uint(magnitude) | (code >> 1 & 1u) << 31);
    }
    return quad;
  }
};

// Codes: negative. Eight that are neighbours share a byte.
struct Bit1Coder : SplitCoder<CodecId::Bit1, 1>, MomentScale<CodecId::Bit1, false> {
  static __device__ __forceinline__ std::uint32_t codes(const Quad& values, const Scale&) {
    std::uint32_t codes = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) codes |= __float_as_uint(values.v[c]) >> 31 << 8 * c;
    return codes;
  }

  static __device__ __forceinline__ Quad decoded(std::uint32_t codes, const Scale& scale) {
    Quad quad;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      quad.v[c] = __uint_as_float(__float_as_uint(scale.value) | (codes >> 8 * c & 1u) << 31);
    }
    return quad;
  }

  // Bit 0 of each byte of a word, side by side: the product has them in bits 24 to 27.
  static __device__ __forceinline__ std::uint32_t nibble(std::uint32_t codes) {
    return codes * 0x01020408u >> 24 & 0xFu;
  }
  static __device__ __forceinline__ std::uint32_t spread(std::uint32_t nibble) {
    return (nibble & 0xFu) * 0x00204081u & 0x01010101u;
  }
  static __device__ __forceinline__ std::uint32_t pack_byte(const std::uint8_t* codes, unsigned index,
                                                            unsigned) {
    return nibble(word_at(codes, 8 * index)) | nibble(word_at(codes, 8 * index + 4)) << 4;
  }
  static __device__ __forceinline__ std::uint32_t pack_word(const std::uint8_t* codes, unsigned index,
                                                            unsigned n) {
    return low_bytes(pack_byte(codes, index, n), pack_byte(codes, index + 1, n),
                     pack_byte(codes, index + 2, n), pack_byte(codes, index + 3, n));
  }
  static __device__ __forceinline__ void unpack_byte(std::uint32_t packed, std::uint8_t* codes,
                                                     unsigned index, unsigned) {
    put_word(codes, 8 * index, spread(packed));
    put_word(codes, 8 * index + 4, spread(packed >> 4));
  }
  static __device__ __forceinline__ void unpack_word(std::uint32_t packed, std::uint8_t* codes,
                                                     unsigned index, unsigned n) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) unpack_byte(packed >> 8 * i & 0xFFu, codes, index + i, n);
  }
};

// Calls `run.template operator()<Coder>()` for the block codec at hand.
template <typename Run>
core::Status with_coder(CodecId id, Run&& run) {
  switch (id) {
    case CodecId::Int8:
      return run.template operator()<IntCoder<CodecId::Int8>>();
    case CodecId::Int4:
      return run.template operator()<IntCoder<CodecId::Int4>>();
    case CodecId::Bit2:
      return run.template operator()<Bit2Coder>();
    default:
      return run.template operator()<Bit1Coder>();
  }
}

}  // namespace geocomm::codec::cuda
