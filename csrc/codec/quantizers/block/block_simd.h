// The loops of BlockKernels on vectors V (codec/simd). All is local to the file that
// includes it. Counts are multiples of kBlockStep. Values are finite but in load().
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/frames/vector_elements.h"
#include "codec/quantizers/block/block_kernels.h"
#include "codec/simd/partial_sums.h"
#include "codec/simd/prefetch.h"

namespace geocomm::codec {
namespace {

template <typename V, core::DType kType, Residual kResidual>
std::int32_t load(const std::byte* src, const std::byte* residual, float decay, std::size_t count,
                  std::byte* values) {
  constexpr std::size_t kStep = 4 * V::kLanes;
  const auto factor = V::set(decay);
  typename V::Ints peaks[4] = {V::set_int(0), V::set_int(0), V::set_int(0), V::set_int(0)};
  for (std::size_t i = 0; i < count; i += kStep) {
    for (std::size_t part = 0; part < 4; ++part) {
      const std::size_t at = i + part * V::kLanes;
      const auto value = load_values<V, kType, kResidual>(src, residual, factor, at);
      if constexpr (kType != core::DType::Float32 || kResidual != Residual::None) {
        V::store(values + 4 * at, value);
      }
      peaks[part] = V::max(peaks[part], magnitude_bits<V>(value));
    }
  }
  return V::largest(V::max(V::max(peaks[0], peaks[1]), V::max(peaks[2], peaks[3])));
}

template <typename V, bool kSquares>
float sum(const std::byte* values, std::size_t count, float factor) {
  const auto scale = V::set(factor);
  return sum_vectors<V>(count, [&](std::size_t index) {
    const auto value = V::load(values + 4 * index) * scale;
    return kSquares ? value * value : V::floats(magnitude_bits<V>(value));
  });
}

// Runs over n bytes in steps of 16, the last of which may overlap the one before; n is 16 or more.
template <typename Step>
[[gnu::always_inline]] inline void in_sixteens(std::size_t n, Step step) {
  for (std::size_t i = 0; i + 16 <= n; i += 16) step(i);
  if (n % 16 != 0) step(n - 16);
}

// Sixteen bytes as words of 16 bits, which both architectures shift.
using Sixteen = std::uint16_t __attribute__((vector_size(16)));

[[gnu::always_inline]] inline Sixteen load16(const std::byte* from) {
  Sixteen a;
  __builtin_memcpy(&a, from, sizeof(a));
  return a;
}
[[gnu::always_inline]] inline void store16(std::byte* to, Sixteen a) {
  __builtin_memcpy(to, &a, sizeof(a));
}

// Codes, one per byte, to packed ones: see block_scalar.cc.
[[gnu::always_inline]] inline void pack_int4(const std::byte* codes, std::size_t n, std::byte* packed) {
  in_sixteens(n, [&](std::size_t i) {
    const Sixteen low = load16(codes + i) & 0x0F0F;
    store16(packed + i, low | (load16(codes + n + i) << 4 & 0xF0F0));
  });
}

[[gnu::always_inline]] inline void unpack_int4(const std::byte* packed, std::size_t n, std::byte* codes) {
  using Bytes = std::int8_t __attribute__((vector_size(16)));
  // (x ^ 8) - 8 extends the sign
  const auto extended = [](Sixteen four) {
    return reinterpret_cast<Sixteen>(reinterpret_cast<Bytes>(four ^ 0x0808) - std::int8_t{8});
  };
  in_sixteens(n, [&](std::size_t i) {
    const Sixteen bytes = load16(packed + i);
    store16(codes + i, extended(bytes & 0x0F0F));
    store16(codes + n + i, extended(bytes >> 4 & 0x0F0F));
  });
}

// Codes from 0 to 3, so that shifts of whole words leave their neighbours alone.
[[gnu::always_inline]] inline void pack_bit2(const std::byte* codes, std::size_t n, std::byte* packed) {
  in_sixteens(n, [&](std::size_t i) {
    const Sixteen low = load16(codes + i) | load16(codes + n + i) << 2;
    const Sixteen high = load16(codes + 2 * n + i) | load16(codes + 3 * n + i) << 2;
    store16(packed + i, low | high << 4);
  });
}

// Leaves more than the code in the bytes of all parts: look_up() takes the lowest two bits.
[[gnu::always_inline]] inline void unpack_bit2(const std::byte* packed, std::size_t n, std::byte* codes) {
  in_sixteens(n, [&](std::size_t i) {
    const Sixteen bytes = load16(packed + i);
    store16(codes + i, bytes);
    store16(codes + n + i, bytes >> 2);
    store16(codes + 2 * n + i, bytes >> 4);
    store16(codes + 3 * n + i, bytes >> 6);
  });
}

template <CodecId kId>
[[gnu::always_inline]] inline void pack(const std::byte* codes, std::size_t count, std::byte* packed) {
  if constexpr (kId == CodecId::Int4) {
    pack_int4(codes, count / 2, packed);
  } else {
    pack_bit2(codes, count / 4, packed);
  }
}

template <CodecId kId>
[[gnu::always_inline]] inline void unpack(const std::byte* packed, std::size_t count, std::byte* codes) {
  if constexpr (kId == CodecId::Int4) {
    unpack_int4(packed, count / 2, codes);
  } else {
    unpack_bit2(packed, count / 4, codes);
  }
}

// How one codec makes codes of a vector of values, and what they decode to.
template <typename V, Coder kCoder>
class VectorCoder {
 public:
  using Floats = typename V::Floats;
  using Ints = typename V::Ints;

  explicit VectorCoder(const BlockScale& scale)
      : scale_(V::set(scale.scale)),
        inverse_(V::set(scale.inverse)),
        threshold_(V::set(kBit2Threshold * scale.scale)),
        table_(V::set_table(kBit2Low * scale.scale, kBit2High * scale.scale, -(kBit2Low * scale.scale),
                            -(kBit2High * scale.scale))) {}

  // The vector's first element is element `at` of the block. `random`: the block's, nullptr for the rest.
  Ints codes(Floats value, const std::byte* random, std::size_t at) const {
    if constexpr (kCoder == Coder::Int8 || kCoder == Coder::Int4) {
      return V::round(value * inverse_);
    } else if constexpr (kCoder == Coder::Int8Stochastic || kCoder == Coder::Int4Stochastic) {
      constexpr std::int32_t kMax = kCoder == Coder::Int8Stochastic ? kMaxInt8 : kMaxInt4;
      const Ints fixed = V::round(value * inverse_ * V::set(32768.0f));
      const Ints added = V::add(fixed, V::template shift_right<1>(V::load_words(random + 2 * at)));
      const Ints code = V::template shift_right_signed<15>(added);
      return V::max(V::min(code, V::set_int(kMax)), V::set_int(-kMax));
    } else {
      const Floats magnitude = V::floats(magnitude_bits<V>(value));
      const Ints large = V::where(V::greater_equal(magnitude, threshold_), V::set_int(1));
      return (V::template shift_right<30>(V::bits(value)) & V::set_int(2)) | large;
    }
  }

  Floats decoded(Ints codes) const {
    if constexpr (kCoder == Coder::Bit2) return V::look_up(table_, codes);
    return V::to_floats(codes) * scale_;
  }

 private:
  Floats scale_;
  Floats inverse_;
  Floats threshold_;  // Bit2
  Floats table_;      // Bit2
};

template <typename V, Coder kCoder, Residual kResidual>
void quantize(const std::byte* values, std::size_t count, const BlockScale& scale, const std::byte* random,
              std::byte* packed, std::byte* residual) {
  constexpr std::size_t kStep = 4 * V::kLanes;
  constexpr CodecId kId = codec_of(kCoder);
  const VectorCoder<V, kCoder> coder(scale);
  alignas(64) std::byte room[kId == CodecId::Int8 ? 1 : kMaxBlock];
  std::byte* codes = kId == CodecId::Int8 ? packed : room;
  for (std::size_t i = 0; i < count; i += kStep) {
    prefetch_ahead<kStep * 4>(values + 4 * i);
    typename V::Ints code[4];
    for (std::size_t part = 0; part < 4; ++part) {
      const std::size_t at = i + part * V::kLanes;
      const auto value = V::load(values + 4 * at);
      code[part] = coder.codes(value, random, at);
      if constexpr (kResidual != Residual::None) {
        store_residuals<V, kResidual, true>(residual, at, value, coder.decoded(code[part]));
      }
    }
    V::store_ints(codes + i, V::to_bytes(code[0], code[1], code[2], code[3]));
  }
  if constexpr (kId != CodecId::Int8) pack<kId>(codes, count, packed);
}

// 64 signs at a time, which go out as one word.
template <typename V, Residual kResidual>
void quantize_signs(const std::byte* values, std::size_t count, const BlockScale& scale, const std::byte*,
                    std::byte* packed, std::byte* residual) {
  constexpr std::size_t kStep = 64;
  const auto magnitude = V::set(scale.scale);
  for (std::size_t i = 0; i < count; i += kStep) {
    prefetch_ahead<kStep * 4>(values + 4 * i);
    std::uint64_t signs = 0;
    for (std::size_t part = 0; part < kStep; part += V::kLanes) {
      const auto value = V::load(values + 4 * (i + part));
      signs |= std::uint64_t{V::signs(value)} << part;
      if constexpr (kResidual != Residual::None) {
        const auto sign = V::bits(value) & V::set_int(INT32_MIN);
        store_residuals<V, kResidual, true>(residual, i + part, value, V::floats(V::bits(magnitude) | sign));
      }
    }
    __builtin_memcpy(packed + i / 8, &signs, sizeof(signs));
  }
}

template <typename V, CodecId kId, Sink kSink>
void dequantize(const std::byte* packed, std::size_t count, float scale, std::byte* dst) {
  constexpr Coder kCoder = kId == CodecId::Bit2 ? Coder::Bit2 : Coder::Int8;
  const VectorCoder<V, kCoder> coder({.scale = scale});
  alignas(64) std::byte room[kId == CodecId::Int8 ? 1 : kMaxBlock];
  const std::byte* codes = packed;
  if constexpr (kId != CodecId::Int8) {
    unpack<kId>(packed, count, room);
    codes = room;
  }
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    put_vector<V, kSink, true>(dst, i, coder.decoded(V::load_bytes(codes + i)));
  }
}

template <typename V, Sink kSink>
void dequantize_signs(const std::byte* packed, std::size_t count, float scale, std::byte* dst) {
  const auto magnitude = V::set(scale);
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    put_vector<V, kSink, true>(dst, i, V::with_signs(packed, i, magnitude));
  }
}

// Lanes of 64 bits hold the four words of a counter in their low halves; what is above them does not count.
// Several chains run side by side, since a round waits for its multiplications.
template <typename V>
void random(std::uint64_t seed, std::uint64_t first, std::size_t counters, std::byte* words) {
  constexpr int kRounds = 10;
  constexpr std::size_t kChains = kRandomCounters / V::kWideLanes;
  using Ints = typename V::Ints;
  Ints keys[kRounds][2];
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    keys[round][0] = V::set_wide(static_cast<std::uint32_t>(seed) + round * 0x9E3779B9u);
    keys[round][1] = V::set_wide(static_cast<std::uint32_t>(seed >> 32) + round * 0xBB67AE85u);
  }
  const Ints multiplier_a = V::set_wide(0xD2511F53);
  const Ints multiplier_c = V::set_wide(0xCD9E8D57);
  for (std::size_t done = 0; done < counters; done += kRandomCounters) {
    Ints a[kChains], b[kChains], c[kChains], d[kChains];
    for (std::size_t chain = 0; chain < kChains; ++chain) {
      // The first round, where c and d are 0.
      const Ints counter = V::count_from(first + done + chain * V::kWideLanes);
      d[chain] = V::multiply(counter, multiplier_a);
      a[chain] = V::high_half(counter) ^ keys[0][0];
      b[chain] = V::set_int(0);
      c[chain] = V::high_half(d[chain]) ^ keys[0][1];
    }
#pragma GCC unroll 9
    for (int round = 1; round < kRounds; ++round) {
      for (std::size_t chain = 0; chain < kChains; ++chain) {
        const Ints product_a = V::multiply(a[chain], multiplier_a);
        const Ints product_c = V::multiply(c[chain], multiplier_c);
        a[chain] = V::exclusive_or(V::high_half(product_c), b[chain], keys[round][0]);
        b[chain] = product_c;
        c[chain] = V::exclusive_or(V::high_half(product_a), d[chain], keys[round][1]);
        d[chain] = product_a;
      }
    }
    for (std::size_t chain = 0; chain < kChains; ++chain) {
      std::byte* to = words + 16 * (done + chain * V::kWideLanes);
      V::store_quads(to, a[chain], b[chain], c[chain], d[chain]);
    }
  }
}

template <typename V, Coder kCoder, Residual kResidual>
constexpr BlockKernels::Quantize quantize_loop() {
  if constexpr (kCoder == Coder::Bit1) {
    return quantize_signs<V, kResidual>;
  } else {
    return quantize<V, kCoder, kResidual>;
  }
}

template <typename V, CodecId kId, Sink kSink>
constexpr BlockKernels::Dequantize dequantize_loop() {
  if constexpr (kId == CodecId::Bit1) {
    return dequantize_signs<V, kSink>;
  } else {
    return dequantize<V, kId, kSink>;
  }
}

template <typename V>
struct BlockLoops {
  template <core::DType kType, Residual kResidual>
  static constexpr BlockKernels::Load kLoad = load<V, kType, kResidual>;
  template <bool kSquares>
  static constexpr BlockKernels::Sum kSum = sum<V, kSquares>;
  template <Coder kCoder, Residual kResidual>
  static constexpr BlockKernels::Quantize kQuantize = quantize_loop<V, kCoder, kResidual>();
  template <CodecId kId, Sink kSink>
  static constexpr BlockKernels::Dequantize kDequantize = dequantize_loop<V, kId, kSink>();
  static constexpr BlockKernels::Random kRandom = random<V>;
};

}  // namespace
}  // namespace geocomm::codec
