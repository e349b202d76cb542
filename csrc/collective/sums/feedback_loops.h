// The loops of feedback_kernels.h on vectors, for a FloatFormat (float_formats_simd.h).
#pragma once

#include <cstddef>

#include "codec/simd/partial_sums.h"
#include "collective/sums/feedback_kernels.h"

namespace geocomm::collective {

template <typename Format>
struct FeedbackLoops {
  using V = typename Format::Vector;
  using Floats = typename V::Floats;
  using Squares = codec::VectorSquares<V>;

  // Rounded to the format.
  static Floats store(std::byte* to, Floats floats) {
    Format::store(to, floats);
    return Format::load(to);
  }

  static void enter_scaled(std::byte* elements, const float* residual, const float* scale, float decay,
                           float* next, std::size_t count, double* squares) {
    const Floats factor = V::set(decay);
    Squares sums(squares);
    codec::for_vectors<V>(count, [&](std::size_t lane, std::size_t i) {
      std::byte* const element = elements + i * Format::kBytes;
      const Floats by = V::load(scale + i);
      const Floats value = store(element, Format::load(element) / by);
      const Floats lost = V::load(residual + i) / by;
      V::store(next + i, lost);
      sums.add(lane, value + factor * lost);
    });
  }

  static void enter(const std::byte* elements, const float* residual, float decay, float* next,
                    std::size_t count, double* squares) {
    const Floats factor = V::set(decay);
    Squares sums(squares);
    codec::for_vectors<V>(count, [&](std::size_t lane, std::size_t i) {
      const Floats lost = V::load(residual + i);
      V::store(next + i, lost);
      sums.add(lane, Format::load(elements + i * Format::kBytes) + factor * lost);
    });
  }

  static void divide(const std::byte* src, const float* scale, std::byte* dst, std::size_t count) {
    codec::for_vectors<V>(count, [&](std::size_t, std::size_t i) {
      Format::store(dst + i * Format::kBytes, Format::load(src + i * Format::kBytes) / V::load(scale + i));
    });
  }

  static void leave(std::byte* elements, float divisor, const float* scale, std::size_t count, double* scaled,
                    double* plain) {
    const Floats by = V::set(divisor);
    Squares before(scaled);
    Squares after(plain);
    codec::for_vectors<V>(count, [&](std::size_t lane, std::size_t i) {
      std::byte* const element = elements + i * Format::kBytes;
      const Floats mean = store(element, Format::load(element) / by);
      before.add(lane, mean);
      after.add(lane, store(element, mean * V::load(scale + i)));
    });
  }

  static void square(const std::byte* elements, std::size_t count, double* squares) {
    Squares sums(squares);
    codec::for_vectors<V>(count, [&](std::size_t lane, std::size_t i) {
      sums.add(lane, Format::load(elements + i * Format::kBytes));
    });
  }

  static constexpr FeedbackKernels kKernels = {enter_scaled, enter, divide, leave, square};
};

}  // namespace geocomm::collective
