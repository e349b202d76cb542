// The reference: what every other table of BlockKernels equals bit for bit.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "codec/quantizers/block/block_kernels.h"
#include "codec/quantizers/block/block_layout.h"
#include "codec/simd/partial_sums.h"
#include "core/philox.h"

namespace geocomm::codec {
namespace {

using core::DType;

template <DType kType, Residual kResidual>
std::int32_t load(const std::byte* __restrict src, const std::byte* __restrict residual, float decay,
                  std::size_t count, std::byte* __restrict values) {
  std::int32_t peak = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load_value<kType, kResidual>(src, residual, decay, i);
    if constexpr (kType != DType::Float32 || kResidual != Residual::None) {
      std::memcpy(values + 4 * i, &value, 4);
    }
    peak = std::max(peak, std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF);
  }
  return peak;
}

template <bool kSquares>
float sum(const std::byte* values, std::size_t count, float factor) {
  return sum_terms(count, [&](std::size_t i) {
    const float value = load_element<DType::Float32>(values, i) * factor;
    return kSquares ? value * value
                    : std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & ~core::kFloatSignBit);
  });
}

// 1.5 * 2^23: adding it rounds |v| < 2^22 to an integer, nearest even, that stands in the low bits.
constexpr float kRintMagic = 12582912.0f;
std::int32_t rint_to_int(float value) {
  return std::bit_cast<std::int32_t>(value + kRintMagic) - std::bit_cast<std::int32_t>(kRintMagic);
}

constexpr int kRandomBits = 15;

// One code per byte: a signed integer (Int8, Int4), 2 * negative + large (Bit2), negative (Bit1).
template <Coder kCoder>
std::int32_t code_of(float value, const BlockScale& scale, std::uint16_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const float magnitude = std::bit_cast<float>(bits & ~core::kFloatSignBit);
  const auto negative = static_cast<std::int32_t>(bits >> 31);
  if constexpr (kCoder == Coder::Int8 || kCoder == Coder::Int4) {
    return rint_to_int(value * scale.inverse);
  } else if constexpr (kCoder == Coder::Int8Stochastic || kCoder == Coder::Int4Stochastic) {
    constexpr std::int32_t kMax = kCoder == Coder::Int8Stochastic ? kMaxInt8 : kMaxInt4;
    const std::int32_t fixed = rint_to_int(value * scale.inverse * static_cast<float>(1 << kRandomBits));
    return std::clamp((fixed + (random >> 1)) >> kRandomBits, -kMax, kMax);
  } else if constexpr (kCoder == Coder::Bit2) {
    return 2 * negative + static_cast<std::int32_t>(magnitude >= kBit2Threshold * scale.scale);
  } else {
    return negative;
  }
}

template <CodecId kId>
float value_of(std::int32_t code, float scale) {
  if constexpr (kId == CodecId::Bit2) {
    const auto magnitude = std::bit_cast<std::uint32_t>(((code & 1) != 0 ? kBit2High : kBit2Low) * scale);
    return std::bit_cast<float>(magnitude | static_cast<std::uint32_t>(code >> 1) << 31);
  } else if constexpr (kId == CodecId::Bit1) {
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) | static_cast<std::uint32_t>(code) << 31);
  } else {
    return static_cast<float>(code) * scale;
  }
}

// Codes of a block, one per byte, with room for those that fill up the last packed byte.
using Codes = std::array<std::int8_t, kMaxBlock + 8>;

// Byte i holds the codes i, i + n, i + 2 n, ... of n bytes, from its low bits up.
template <int kBits>
void pack_split(const Codes& codes, std::size_t n, std::byte* __restrict packed) {
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t byte = 0;
    for (std::size_t part = 0; part < 8 / kBits; ++part) {
      byte |= (static_cast<std::uint32_t>(codes[i + part * n]) & ((1u << kBits) - 1)) << (part * kBits);
    }
    packed[i] = static_cast<std::byte>(byte);
  }
}

template <int kBits, bool kSigned>
void unpack_split(const std::byte* __restrict packed, std::size_t n, Codes& codes) {
  for (std::size_t part = 0; part < 8 / kBits; ++part) {
    for (std::size_t i = 0; i < n; ++i) {
      const auto top = static_cast<std::uint32_t>(packed[i]) << (32 - kBits * (part + 1));
      codes[i + part * n] =
          static_cast<std::int8_t>(kSigned ? static_cast<std::int32_t>(top) >> (32 - kBits)
                                           : static_cast<std::int32_t>(top >> (32 - kBits)));
    }
  }
}

// Eight codes that are neighbours share a byte, from its low bit up.
void pack_signs(const Codes& codes, std::size_t n, std::byte* __restrict packed) {
  for (std::size_t i = 0; i < n; ++i) {
    int byte = 0;
    for (std::size_t bit = 0; bit < 8; ++bit) byte |= codes[8 * i + bit] << bit;
    packed[i] = static_cast<std::byte>(byte);
  }
}

void unpack_signs(const std::byte* __restrict packed, std::size_t n, Codes& codes) {
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t bit = 0; bit < 8; ++bit) {
      codes[8 * i + bit] = static_cast<std::int8_t>(static_cast<int>(packed[i]) >> bit & 1);
    }
  }
}

template <CodecId kId>
void pack(Codes& codes, std::size_t count, std::byte* packed) {
  const std::size_t n = (count + codes_per_byte(kId) - 1) / codes_per_byte(kId);
  std::fill(codes.begin() + static_cast<std::ptrdiff_t>(count),
            codes.begin() + static_cast<std::ptrdiff_t>(n * codes_per_byte(kId)), std::int8_t{0});
  if constexpr (kId == CodecId::Int8) {
    if (n > 0) std::memcpy(packed, codes.data(), n);
  } else if constexpr (kId == CodecId::Int4) {
    pack_split<4>(codes, n, packed);
  } else if constexpr (kId == CodecId::Bit2) {
    pack_split<2>(codes, n, packed);
  } else {
    pack_signs(codes, n, packed);
  }
}

template <CodecId kId>
void unpack(const std::byte* packed, std::size_t count, Codes& codes) {
  const std::size_t n = (count + codes_per_byte(kId) - 1) / codes_per_byte(kId);
  if constexpr (kId == CodecId::Int8) {
    if (n > 0) std::memcpy(codes.data(), packed, n);
  } else if constexpr (kId == CodecId::Int4) {
    unpack_split<4, true>(packed, n, codes);
  } else if constexpr (kId == CodecId::Bit2) {
    unpack_split<2, false>(packed, n, codes);
  } else {
    unpack_signs(packed, n, codes);
  }
}

template <Coder kCoder, Residual kResidual>
void quantize(const std::byte* __restrict values, std::size_t count, const BlockScale& scale,
              const std::byte* __restrict random, std::byte* __restrict packed,
              std::byte* __restrict residual) {
  constexpr bool kRandom = kCoder == Coder::Int8Stochastic || kCoder == Coder::Int4Stochastic;
  Codes codes;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load_element<DType::Float32>(values, i);
    std::uint16_t bits = 0;
    if constexpr (kRandom) bits = load_unaligned<std::uint16_t>(random + 2 * i);
    const std::int32_t code = code_of<kCoder>(value, scale, bits);
    codes[i] = static_cast<std::int8_t>(code);
    if constexpr (kResidual != Residual::None) {
      store_residual<kResidual>(residual, i, value, value_of<codec_of(kCoder)>(code, scale.scale));
    }
  }
  pack<codec_of(kCoder)>(codes, count, packed);
}

template <CodecId kId, Sink kSink>
void dequantize(const std::byte* __restrict packed, std::size_t count, float scale,
                std::byte* __restrict dst) {
  Codes codes;
  unpack<kId>(packed, count, codes);
  for (std::size_t i = 0; i < count; ++i) put<kSink>(dst, i, value_of<kId>(codes[i], scale));
}

void random(std::uint64_t seed, std::uint64_t first, std::size_t counters, std::byte* words) {
  const core::PhiloxKey key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (std::size_t done = 0; done < counters; done += kRandomCounters) {
    const std::uint64_t base = first + done;
    const auto low = static_cast<std::uint32_t>(base);
    const auto high = static_cast<std::uint32_t>(base >> 32);
    std::byte* __restrict out = words + sizeof(core::PhiloxCounter) * done;
    for (std::uint32_t i = 0; i < kRandomCounters; ++i) {
      const std::uint32_t carry = low + i < low ? 1 : 0;
      const core::PhiloxCounter bits = core::philox4x32({low + i, high + carry, 0, 0}, key);
      std::memcpy(out + sizeof(bits) * i, bits.data(), sizeof(bits));
    }
  }
}

struct Loops {
  template <DType kType, Residual kResidual>
  static constexpr BlockKernels::Load kLoad = load<kType, kResidual>;
  template <bool kSquares>
  static constexpr BlockKernels::Sum kSum = sum<kSquares>;
  template <Coder kCoder, Residual kResidual>
  static constexpr BlockKernels::Quantize kQuantize = quantize<kCoder, kResidual>;
  template <CodecId kId, Sink kSink>
  static constexpr BlockKernels::Dequantize kDequantize = dequantize<kId, kSink>;
  static constexpr BlockKernels::Random kRandom = random;
};

}  // namespace

constinit const BlockKernels BlockKernels::kScalar = make_block_kernels<Loops>();

}  // namespace geocomm::codec
