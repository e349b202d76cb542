// The loops of the block codecs over the elements of one block, one table per CPU level. block_scalar.cc is
// the reference: the others give the same bytes.
//
// Elements, residuals, codes and random bits may have any alignment. Blocks have at most kMaxBlock elements;
// those of the other tables a multiple of kBlockStep, the rest is left to the scalar one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/frames/elements.h"
#include "codec/quantizers/block/block_scale.h"
#include "codec/spec/codec_spec.h"
#include "core/cpu.h"

namespace geocomm::codec {

// How elements become codes.
enum class Coder : std::uint8_t { Int8, Int8Stochastic, Int4, Int4Stochastic, Bit2, Bit1 };
inline constexpr std::size_t kCoders = 6;

constexpr CodecId codec_of(Coder coder) {
  switch (coder) {
    case Coder::Int8:
    case Coder::Int8Stochastic:
      return CodecId::Int8;
    case Coder::Int4:
    case Coder::Int4Stochastic:
      return CodecId::Int4;
    case Coder::Bit2:
      return CodecId::Bit2;
    case Coder::Bit1:
      break;
  }
  return CodecId::Bit1;
}

inline constexpr std::size_t kBlockCodecs = 4;
constexpr std::size_t block_codec_index(CodecId id) {
  return id == CodecId::Bit1 ? kBlockCodecs - 1
                             : static_cast<std::size_t>(id) - static_cast<std::size_t>(CodecId::Int8);
}
inline constexpr std::size_t kBlockStep = 64;       // the smallest block
inline constexpr std::size_t kRandomCounters = 16;  // Philox counters made at once, of 8 elements each

struct BlockKernels {
  static const BlockKernels kScalar, kAvx2, kAvx512, kNeon;

  // v = input + decay * residual, to `values`; with neither a cast nor a residual to do, the input is
  // `values` already and is only looked at. Returns the largest magnitude as a bit pattern: kFloatInfBits or
  // more if there is an Inf or a NaN.
  using Load = std::int32_t (*)(const std::byte* src, const std::byte* residual, float decay,
                                std::size_t count, std::byte* values);
  Load load[kCompressibles][kResidualKinds];

  // Sum of (v * factor)^2, of |v * factor|: 128 partial sums, of which element e joins number e mod 128 in
  // order of e; then s[j] += s[j + h] for h = 64, 32, ..., 1.
  using Sum = float (*)(const std::byte* values, std::size_t count, float factor);
  Sum sum_squares;
  Sum sum_magnitudes;

  // Finite values to packed codes; the residual becomes v - what they decode to. `random`: 16 bits per
  // element, of which the upper 15 count, for the stochastic coders.
  using Quantize = void (*)(const std::byte* values, std::size_t count, const BlockScale& scale,
                            const std::byte* random, std::byte* codes, std::byte* residual);
  Quantize quantize[kCoders][kResidualKinds];

  // Packed codes to values.
  using Dequantize = void (*)(const std::byte* codes, std::size_t count, float scale, std::byte* dst);
  Dequantize dequantize[kBlockCodecs][kSinks];

  // Philox4x32-10 of the counters [first, first + counters), four words each; rounded up to kRandomCounters.
  using Random = void (*)(std::uint64_t seed, std::uint64_t first, std::size_t counters, std::byte* words);
  Random random;
};

// The table of `Loops`, a type of the file that compiles them, with the members kLoad<DType, Residual>,
// kSum<squares>, kQuantize<Coder, Residual>, kDequantize<CodecId, Sink> and kRandom.
template <typename Loops>
constexpr BlockKernels make_block_kernels() {
  BlockKernels table{};
  for_each_residual([&]<Residual kResidual>() {
    const auto residual = static_cast<std::size_t>(kResidual);
    for_each_compressible([&]<core::DType kType>() {
      table.load[compressible_index(kType)][residual] = Loops::template kLoad<kType, kResidual>;
    });
    for_each<Coder::Int8, Coder::Int8Stochastic, Coder::Int4, Coder::Int4Stochastic, Coder::Bit2,
             Coder::Bit1>([&]<Coder kCoder>() {
      table.quantize[static_cast<std::size_t>(kCoder)][residual] =
          Loops::template kQuantize<kCoder, kResidual>;
    });
  });
  for_each<CodecId::Int8, CodecId::Int4, CodecId::Bit2, CodecId::Bit1>([&]<CodecId kId>() {
    for_each_sink([&]<Sink kSink>() {
      table.dequantize[block_codec_index(kId)][static_cast<std::size_t>(kSink)] =
          Loops::template kDequantize<kId, kSink>;
    });
  });
  table.sum_squares = Loops::template kSum<true>;
  table.sum_magnitudes = Loops::template kSum<false>;
  table.random = Loops::kRandom;
  return table;
}

// Of the level in use, but for what they do not take.
inline const BlockKernels& block_kernels_for(std::size_t count) {
  return count % kBlockStep == 0 ? core::at_cpu_level<BlockKernels>() : BlockKernels::kScalar;
}

}  // namespace geocomm::codec
