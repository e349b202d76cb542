// Sums in float of one storage format, from left to right, rounded once at the end; a family of them per CPU
// level. The scalar one is the reference, and takes the short ends.
//
// A NaN stays what it was, but quiet, whatever is added to it: a + (a is NaN ? a : b). So two NaNs have one
// sum, whichever of them an instruction would prefer.
#pragma once

#include <cstddef>

#include "codec/frames/elements.h"

namespace geocomm::collective {

// Elements have any alignment.
struct SumKernels {
  // dst = (sources[0] + sources[1] + ...) / divisor for the elements from `begin` to before `end`; one source
  // or more. dst may be one of them, else they do not overlap.
  void (*sum)(const std::byte* const* sources, std::size_t source_count, std::byte* dst, std::size_t begin,
              std::size_t end, float divisor);
  // sums = elements, NaN bits as they are.
  void (*widen)(const std::byte* elements, float* sums, std::size_t count);
  // sums += elements.
  void (*add)(const std::byte* elements, float* sums, std::size_t count);
  // dst = sums, rounded. dst may be where the sums are.
  void (*narrow)(const float* sums, std::byte* dst, std::size_t count);
};

struct SumFamily {
  static const SumFamily kScalar, kAvx2, kAvx512, kNeon;

  SumKernels formats[codec::kCompressibles];  // by codec::compressible_index()
};

}  // namespace geocomm::collective
