// What local steps do to each element, one table per CPU level. outer_scalar.cc is the reference: the others
// give the same bits. Every product and every sum is rounded to float by itself, so sites agree whatever
// their machines.
//
// Arrays are aligned as floats are, and have `count` elements. Those that are written overlap no other,
// unless it says so.
#pragma once

#include <cstddef>

namespace geocomm::collective {

// Sums of the squares, as codec/simd/partial_sums.h adds them, of what the anchor moved, and of the delta.
struct StepSquares {
  double moved;
  double delta;
};

struct OuterKernels {
  static const OuterKernels kScalar, kAvx2, kAvx512;

  // delta = anchor - local, where delta may be local. Returns the sum of the squares of delta.
  double (*subtract)(const float* anchor, const float* local, std::size_t count, float* delta);

  // mean = deltas[0] * shares[0] + deltas[1] * shares[1] + ..., from the left; `sites` is 1 or more. Returns
  // the sum of the squares of the mean.
  double (*mean)(const float* const* deltas, const float* shares, std::size_t sites, std::size_t count,
                 float* mean);

  // With momentum b: b = mu * b + delta; anchor = anchor - lr * (mu * b + delta). Where `momentum` is null:
  // anchor = anchor - lr * delta.
  StepSquares (*step)(float lr, float mu, const float* delta, std::size_t count, float* anchor,
                      float* momentum);

  // own = (own - begin) + anchor
  void (*carry)(const float* anchor, const float* begin, std::size_t count, float* own);

  // own = own * keep + anchor * take
  void (*blend)(float keep, float take, const float* anchor, std::size_t count, float* own);
};

}  // namespace geocomm::collective
