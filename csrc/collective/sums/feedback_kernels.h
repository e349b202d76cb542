// What error feedback does with a chunk before it is encoded and after it is reduced, in one pass each; one
// table per CPU level, the scalar one the reference that the others equal bit for bit.
//
// Each operation is rounded, to float and then to the format of the elements. Squares are added, in double,
// to codec::kSquareSums partial sums (codec/simd/partial_sums.h).
#pragma once

#include <cstddef>

#include "codec/frames/elements.h"

namespace geocomm::collective {

// Of one storage format. Elements have any alignment; `scale` has as many floats as there are elements. Every
// `count` is a multiple of codec::kSquareSums but the scalar table's.
struct FeedbackKernels {
  // elements /= scale; next = residual / scale; squares of element + decay * next. `next` may be `residual`.
  void (*enter_scaled)(std::byte* elements, const float* residual, const float* scale, float decay,
                       float* next, std::size_t count, double* squares);
  // The same where all scales are 1.
  void (*enter)(const std::byte* elements, const float* residual, float decay, float* next, std::size_t count,
                double* squares);
  // dst = src / scale, both elements; they may be the same.
  void (*divide)(const std::byte* src, const float* scale, std::byte* dst, std::size_t count);
  // elements /= divisor, of which the squares are added to `scaled`; elements *= scale, to `plain`.
  void (*leave)(std::byte* elements, float divisor, const float* scale, std::size_t count, double* scaled,
                double* plain);
  void (*square)(const std::byte* elements, std::size_t count, double* squares);
};

struct FeedbackFamily {
  static const FeedbackFamily kScalar, kAvx2, kAvx512, kNeon;

  FeedbackKernels formats[codec::kCompressibles];  // by codec::compressible_index()
};

}  // namespace geocomm::collective
