// What local steps do to each element, one table per CPU level. outer_scalar.cc is the reference: the others
// give the same bits. Every product and every sum is rounded to float by itself, so sites agree whatever
// their machines. Squares are added to codec::kSquareSums partial sums (codec/simd/partial_sums.h).
//
// Arrays are aligned as floats are, and have `count` elements, a multiple of codec::kSquareSums but for the
// scalar table. Those that are written overlap no other, unless it says so.
#pragma once

#include <cstddef>

namespace geocomm::collective {

struct OuterKernels {
  static const OuterKernels kScalar, kAvx2, kAvx512, kNeon;

  // delta = anchor - local, where delta may be local; squares of delta.
  void (*subtract)(const float* anchor, const float* local, std::size_t count, float* delta, double* squares);

  // mean = deltas[0] * shares[0] + deltas[1] * shares[1] + ..., from the left, of the elements from `first`
  // on; `sites` is 1 or more. Squares of the mean.
  void (*mean)(const float* const* deltas, const float* shares, std::size_t sites, std::size_t first,
               std::size_t count, float* mean, double* squares);

  // With momentum b: b = mu * b + delta; anchor = anchor - lr * (mu * b + delta). Where `momentum` is null:
  // anchor = anchor - lr * delta. Squares of what the anchor moved, and of delta.
  void (*step)(float lr, float mu, const float* delta, std::size_t count, float* anchor, float* momentum,
               double* moved, double* given);

  // own = (own - begin) + anchor
  void (*carry)(const float* anchor, const float* begin, std::size_t count, float* own);

  // own = own * keep + anchor * take
  void (*blend)(float keep, float take, const float* anchor, std::size_t count, float* own);
};

}  // namespace geocomm::collective
