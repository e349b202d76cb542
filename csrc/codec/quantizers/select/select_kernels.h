// The loops of TopK over the elements of a chunk, one table per CPU level. select_scalar.cc is the reference:
// the others give the same bytes.
//
// A magnitude is the bit pattern of |v| as an integer, so that NaN > Inf > finite and any two compare.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/frames/elements.h"
#include "codec/spec/codec_spec.h"
#include "core/dtype.h"

namespace geocomm::codec {

// What may be written past the end of outputs.
inline constexpr std::size_t kSelectSlackBytes = 64;

struct CollectInput {
  const std::byte* src = nullptr;
  std::byte* residual = nullptr;
  float decay = 1.0f;
  std::size_t count = 0;          // at most kTopKChunk
  std::int32_t above = 0;         // magnitudes above this one are collected; -1: all
  std::uint32_t first_place = 0;  // place of element 0
};

struct SelectKernels {
  static const SelectKernels kScalar, kAvx2, kAvx512, kNeon;

  // v = input + decay * residual goes to `chunk` (room for kTopKChunk; may be `src`) and, 0 where it is not
  // finite, to the residual. Those above are appended to `values` and `places`, in order. Returns how many
  // they are. NaN may change its payload.
  using Collect = std::size_t (*)(const CollectInput& input, float* chunk, float* values,
                                  std::uint32_t* places);
  Collect collect[kCompressibles][kResidualKinds];

  // How many of these values have a magnitude above that one.
  std::size_t (*count_above)(const float* values, std::size_t count, std::int32_t magnitude);

  // Gaps between increasing places, the first counted from `previous` (kNoPlace: none came before): the gap
  // less one as a byte, after one byte of 255 for each 255 in it. Returns how many bytes.
  std::size_t (*write_gaps)(const std::uint32_t* places, std::size_t count, std::uint32_t previous,
                            std::byte* gaps);
};
inline constexpr std::uint32_t kNoPlace = ~std::uint32_t{0};  // 0 comes one after it

}  // namespace geocomm::codec
