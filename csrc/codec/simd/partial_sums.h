// Sums whose order no machine can choose. All is local to the file that includes it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace geocomm::codec {
namespace {

// In float: of 128 partial sums term e joins number e mod 128, in order of e; then s[j] += s[j + h] for h =
// 64, 32, ..., 1.
inline constexpr std::size_t kPartialSums = 128;

// s[j] += s[j + h] until one is left.
template <typename T>
T fold_sums(T* sums, std::size_t count) {
  for (std::size_t half = count / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

// Of term(0) to term(count - 1).
template <typename Term>
float sum_terms(std::size_t count, Term term) {
  std::array<float, kPartialSums> sums{};
  for (std::size_t first = 0; first < count; first += kPartialSums) {
    const std::size_t end = std::min(kPartialSums, count - first);
    for (std::size_t i = 0; i < end; ++i) sums[i] += term(first + i);
  }
  return fold_sums(sums.data(), kPartialSums);
}

// The same on vectors V (vector_*.h): term(e) is that of the terms e on, none negative.
// `count` is a multiple of 64. Half of the partial sums run side by side, in registers.
template <typename V, typename Term>
float sum_vectors(std::size_t count, Term term) {
  constexpr std::size_t kHalf = kPartialSums / 2;
  constexpr std::size_t kVectors = kHalf / V::kLanes;
  typename V::Floats sums[2][kVectors];
  for (std::size_t half = 0; half < 2; ++half) {
    typename V::Floats running[kVectors];
    for (auto& sum : running) sum = V::set(0);
    for (std::size_t i = half * kHalf; i < count; i += kPartialSums) {
#pragma GCC unroll 16
      for (std::size_t k = 0; k < kVectors; ++k) running[k] = running[k] + term(i + k * V::kLanes);
    }
    for (std::size_t k = 0; k < kVectors; ++k) sums[half][k] = running[k];
  }
  for (std::size_t k = 0; k < kVectors; ++k) sums[0][k] = sums[0][k] + sums[1][k];
  for (std::size_t half = kVectors / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) sums[0][k] = sums[0][k] + sums[0][k + half];
  }
  return V::fold(sums[0][0]);
}

// Of squares, in double: of 16 partial sums element e joins number e mod 16, in order of e; then s[j] += s[j
// + h] for h = 8, 4, 2, 1. They are finite exactly where all elements are.
inline constexpr std::size_t kSquareSums = 16;

inline void add_square(double& sum, float value) {
  const double wide = value;
  sum += wide * wide;
}

// Calls run(e mod 16, e) for each element e: in steps of 16, so that the loop vectorizes.
template <typename Run>
void for_lanes(std::size_t count, const Run& run) {
  const std::size_t whole = count - count % kSquareSums;
  for (std::size_t i = 0; i < whole; i += kSquareSums) {
    for (std::size_t lane = 0; lane < kSquareSums; ++lane) run(lane, i + lane);
  }
  for (std::size_t i = whole; i < count; ++i) run(i - whole, i);
}

// The same for the vectors V of a multiple of 16 elements: each begins at e.
template <typename V, typename Run>
[[gnu::always_inline]] inline void for_vectors(std::size_t count, const Run& run) {
  for (std::size_t i = 0; i < count; i += kSquareSums) {
    for (std::size_t lane = 0; lane < kSquareSums; lane += V::kLanes) run(lane, i + lane);
  }
}

// The sums at `memory`, in registers for as long as this lives: a loop that is not unrolled would copy them
// to memory.
template <typename V>
class VectorSquares {
 public:
  explicit VectorSquares(double* memory) : memory_(memory) {
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kVectors; ++k) sums_[k] = V::load_doubles(memory + k * V::kDoubles);
  }
  ~VectorSquares() {
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kVectors; ++k) V::store_doubles(memory_ + k * V::kDoubles, sums_[k]);
  }
  // Of a vector whose first element joins number `lane`.
  void add(std::size_t lane, typename V::Floats values) {
    V::add_squares(sums_ + lane / V::kDoubles, values);
  }

 private:
  static constexpr std::size_t kVectors = kSquareSums / V::kDoubles;
  double* const memory_;
  typename V::Doubles sums_[kVectors];
};

}  // namespace
}  // namespace geocomm::codec
