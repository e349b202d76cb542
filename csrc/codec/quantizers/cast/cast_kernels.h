// The loops of Fp16 and Bf16 over elements, one table per CPU level. cast_scalar.cc is the reference: the
// others give the same bytes.
//
// Elements, residuals and words may have any alignment. The tables but the scalar one take multiples of
// kCastStep elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/frames/elements.h"
#include "core/cpu.h"
#include "core/dtype.h"

namespace geocomm::codec {

inline constexpr std::size_t kCastStep = 64;

// Float16 or BFloat16, for tables.
inline constexpr std::size_t kCastFormats = 2;
constexpr std::size_t cast_format_index(core::DType format) {
  return compressible_index(format) - 1;
}
template <typename Run>
constexpr void for_each_cast_format(Run&& run) {
  for_each<core::DType::Float16, core::DType::BFloat16>(run);
}

// The least magnitude, as a bit pattern, that rounds to Inf.
constexpr std::int32_t first_too_large(core::DType format) {
  return format == core::DType::Float16 ? 0x477FF000 : 0x7F7F8000;
}

struct CastKernels {
  static const CastKernels kScalar, kAvx2, kAvx512, kNeon;

  // Whether no finite value, input + decay * residual, would become Inf. Writes nothing.
  using AllFit = bool (*)(const std::byte* src, const std::byte* residual, float decay, std::size_t count,
                          std::int32_t first_too_large);
  AllFit all_fit[kCompressibles][kResidualKinds];

  // Rounds values to words and updates the residual. Returns whether all fitted.
  using Encode = bool (*)(const std::byte* src, std::byte* residual, float decay, std::size_t count,
                          std::byte* words);
  Encode encode[kCastFormats][kCompressibles][kResidualKinds];

  using Decode = void (*)(const std::byte* words, std::size_t count, std::byte* dst);
  Decode decode[kCastFormats][kSinks];

  // Words, rotated left by one bit, to a plane of their high and one of their low bytes, and back.
  using Split = void (*)(const std::byte* words, std::size_t count, std::byte* high, std::byte* low);
  using Join = void (*)(const std::byte* high, const std::byte* low, std::size_t count, std::byte* words);
  Split split;
  Join join;
};

// core::in_steps() of these tables.
template <typename Run>
void cast_in_steps(std::size_t count, const Run& run) {
  core::in_steps<CastKernels>(count, kCastStep, run);
}

// Words of Float16 or BFloat16 to a sink.
inline void decode_words(core::DType format, const std::byte* words, std::size_t count, Sink sink,
                         std::byte* dst) {
  cast_in_steps(count, [&](const CastKernels& kernels, std::size_t first, std::size_t length) {
    kernels.decode[cast_format_index(format)][static_cast<std::size_t>(sink)](
        words + first * sizeof(std::uint16_t), length, dst + first * element_bytes(sink));
  });
}

// The table of `Loops`, a type of the file that compiles them, with the members kAllFit<DType, Residual>,
// kEncode<format, DType, Residual>, kDecode<format, Sink>, kSplit and kJoin.
template <typename Loops>
constexpr CastKernels make_cast_kernels() {
  CastKernels table{};
  for_each_compressible([&]<core::DType kType>() {
    for_each_residual([&]<Residual kResidual>() {
      const std::size_t type = compressible_index(kType);
      const auto residual = static_cast<std::size_t>(kResidual);
      table.all_fit[type][residual] = Loops::template kAllFit<kType, kResidual>;
      for_each_cast_format([&]<core::DType kFormat>() {
        table.encode[cast_format_index(kFormat)][type][residual] =
            Loops::template kEncode<kFormat, kType, kResidual>;
      });
    });
  });
  for_each_sink([&]<Sink kSink>() {
    for_each_cast_format([&]<core::DType kFormat>() {
      table.decode[cast_format_index(kFormat)][static_cast<std::size_t>(kSink)] =
          Loops::template kDecode<kFormat, kSink>;
    });
  });
  table.split = Loops::kSplit;
  table.join = Loops::kJoin;
  return table;
}

}  // namespace geocomm::codec
