// The sum whose order no machine can choose: of 128 partial sums term e joins number e mod 128, in order of
// e; then s[j] += s[j + h] for h = 64, 32, ..., 1. All is local to the file that includes it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace geocomm::codec {
namespace {

inline constexpr std::size_t kPartialSums = 128;

// Of term(0) to term(count - 1).
template <typename Term>
float sum_terms(std::size_t count, Term term) {
  std::array<float, kPartialSums> sums{};
  for (std::size_t first = 0; first < count; first += kPartialSums) {
    const std::size_t end = std::min(kPartialSums, count - first);
    for (std::size_t i = 0; i < end; ++i) sums[i] += term(first + i);
  }
  for (std::size_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// The same on vectors V (vector_avx2.h, vector_avx512.h): term(e) is that of the terms e on. `count` is a
// multiple of 64. The partial sums 64 to 127 are added to the sums 0 to 63 as soon as both are there.
template <typename V, typename Term>
float sum_vectors(std::size_t count, Term term) {
  constexpr std::size_t kHalf = kPartialSums / 2;
  constexpr std::size_t kVectors = kHalf / V::kLanes;
  typename V::Floats sums[kVectors];
  for (std::size_t vector = 0; vector < kVectors; ++vector) {
    const std::size_t at = vector * V::kLanes;
    auto low = term(at);
    for (std::size_t i = 2 * kHalf; i < count; i += 2 * kHalf) low = low + term(i + at);
    if (count > kHalf) {
      auto high = term(kHalf + at);
      for (std::size_t i = 3 * kHalf; i < count; i += 2 * kHalf) high = high + term(i + at);
      low = low + high;
    }
    sums[vector] = low;
  }
  for (std::size_t half = kVectors / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
  }
  return V::fold(sums[0]);
}

}  // namespace
}  // namespace geocomm::codec
