// The loops of feedback_kernels.h over vectors: `Format` is a type of float_formats_avx2.h or
// float_formats_avx512.h, so each file has loops of its own.
#pragma once

#include <cstddef>

#include "collective/sums/feedback_kernels.h"

namespace geocomm::collective {

template <typename Format>
struct FeedbackLoops {
  using Vector = typename Format::Vector;
  using Doubles = typename Format::Doubles;
  static constexpr std::size_t kLanes = Format::kLanes;
  static constexpr std::size_t kVectors = kSquareLanes / kLanes;
  static constexpr std::size_t kSums = kVectors * Format::kDoubles;

  // The partial sums, in registers while a loop runs.
  struct Squares {
    explicit Squares(double* memory) : to(memory) {
      for (std::size_t s = 0; s < kSums; ++s) sums[s] = Format::load_doubles(to + s * kSquareLanes / kSums);
    }
    ~Squares() {
      for (std::size_t s = 0; s < kSums; ++s) Format::store_doubles(sums[s], to + s * kSquareLanes / kSums);
    }
    void add(std::size_t vector, Vector floats) {
      Format::add_squares(sums + vector * Format::kDoubles, floats);
    }
    double* to;
    Doubles sums[kSums];
  };

  // Calls run(v, i) for vector v of a step, of the elements from i on.
  template <typename Run>
  static void for_vectors(std::size_t count, const Run& run) {
    for (std::size_t i = 0; i < count; i += kSquareLanes) {
      for (std::size_t v = 0; v < kVectors; ++v) run(v, i + v * kLanes);
    }
  }

  // Rounded to the format.
  static Vector store(Vector floats, std::byte* to) {
    Format::store(floats, to);
    return Format::load(to);
  }

  static void enter_scaled(std::byte* elements, const float* residual, const float* scale, float decay,
                           float* next, std::size_t count, double* squares) {
    const Vector factor = Format::broadcast(decay);
    Squares sums(squares);
    for_vectors(count, [&](std::size_t v, std::size_t i) {
      std::byte* const element = elements + i * Format::kBytes;
      const Vector by = Format::load_floats(scale + i);
      const Vector value = store(Format::divide(Format::load(element), by), element);
      const Vector lost = Format::divide(Format::load_floats(residual + i), by);
      Format::store_floats(lost, next + i);
      sums.add(v, Format::add(value, Format::multiply(factor, lost)));
    });
  }

  static void enter(const std::byte* elements, const float* residual, float decay, float* next,
                    std::size_t count, double* squares) {
    const Vector factor = Format::broadcast(decay);
    Squares sums(squares);
    for_vectors(count, [&](std::size_t v, std::size_t i) {
      const Vector lost = Format::load_floats(residual + i);
      Format::store_floats(lost, next + i);
      sums.add(v, Format::add(Format::load(elements + i * Format::kBytes), Format::multiply(factor, lost)));
    });
  }

  static void divide(const std::byte* src, const float* scale, std::byte* dst, std::size_t count) {
    for_vectors(count, [&](std::size_t, std::size_t i) {
      const Vector value = Format::load(src + i * Format::kBytes);
      Format::store(Format::divide(value, Format::load_floats(scale + i)), dst + i * Format::kBytes);
    });
  }

  static void leave(std::byte* elements, float divisor, const float* scale, std::size_t count, double* scaled,
                    double* plain) {
    const Vector by = Format::broadcast(divisor);
    Squares before(scaled);
    Squares after(plain);
    for_vectors(count, [&](std::size_t v, std::size_t i) {
      std::byte* const element = elements + i * Format::kBytes;
      const Vector mean = store(Format::divide(Format::load(element), by), element);
      before.add(v, mean);
      after.add(v, store(Format::multiply(mean, Format::load_floats(scale + i)), element));
    });
  }

  static void square(const std::byte* elements, std::size_t count, double* squares) {
    Squares sums(squares);
    for_vectors(count, [&](std::size_t v, std::size_t i) {
      sums.add(v, Format::load(elements + i * Format::kBytes));
    });
  }

  static constexpr FeedbackKernels kKernels = {enter_scaled, enter, divide, leave, square};
};

}  // namespace geocomm::collective
