// The loops of sum_kernels.h over vectors. `Format` is a type local to the file of one instruction set, so
// each file has loops of its own:
//   Vector: floats; kLanes: how many; kBytes: of an element in memory
//   load(), store(): of elements at any address; a NaN may become quiet on the way
//   load_exact(): with every NaN's bits
//   load_floats(), store_floats(), add(), divide(), broadcast(), nan_or(a, b): a where it is NaN, else b
//   member(family): the table of this format
// What is left after the whole vectors is the scalar table's.
#pragma once

#include <cstddef>

#include "collective/sums/sum_kernels.h"

namespace geocomm::collective {

template <typename Format>
struct SumLoops {
  using Vector = typename Format::Vector;
  static constexpr std::size_t kLanes = Format::kLanes;
  static constexpr std::size_t kVectors = 4;  // side by side: an addition takes cycles

  static Vector added(Vector sum, Vector value) { return Format::add(sum, Format::nan_or(sum, value)); }

  static void sum(const std::byte* const* sources, std::size_t source_count, std::byte* dst,
                  std::size_t begin, std::size_t end, float divisor) {
    const Vector by = Format::broadcast(divisor);
    const auto place = [](std::size_t i, std::size_t v) { return (i + v * kLanes) * Format::kBytes; };
    for (; end - begin >= kVectors * kLanes; begin += kVectors * kLanes) {
      Vector sums[kVectors];
      for (std::size_t v = 0; v < kVectors; ++v) sums[v] = Format::load(sources[0] + place(begin, v));
      for (std::size_t s = 1; s < source_count; ++s) {
        const std::byte* const from = sources[s];
        for (std::size_t v = 0; v < kVectors; ++v) {
          sums[v] = added(sums[v], Format::load(from + place(begin, v)));
        }
      }
      if (divisor != 1.0f) {
        for (std::size_t v = 0; v < kVectors; ++v) sums[v] = Format::divide(sums[v], by);
      }
      for (std::size_t v = 0; v < kVectors; ++v) Format::store(sums[v], dst + place(begin, v));
    }
    Format::member(SumFamily::kScalar).sum(sources, source_count, dst, begin, end, divisor);
  }

  static void widen(const std::byte* elements, float* sums, std::size_t count) {
    std::size_t i = 0;
    for (; count - i >= kLanes; i += kLanes) {
      Format::store_floats(Format::load_exact(elements + i * Format::kBytes), sums + i);
    }
    Format::member(SumFamily::kScalar).widen(elements + i * Format::kBytes, sums + i, count - i);
  }

  static void add(const std::byte* elements, float* sums, std::size_t count) {
    std::size_t i = 0;
    for (; count - i >= kLanes; i += kLanes) {
      const Vector value = Format::load(elements + i * Format::kBytes);
      Format::store_floats(added(Format::load_floats(sums + i), value), sums + i);
    }
    Format::member(SumFamily::kScalar).add(elements + i * Format::kBytes, sums + i, count - i);
  }

  static void narrow(const float* sums, std::byte* dst, std::size_t count) {
    std::size_t i = 0;
    for (; count - i >= kLanes; i += kLanes) {
      Format::store(Format::load_floats(sums + i), dst + i * Format::kBytes);
    }
    Format::member(SumFamily::kScalar).narrow(sums + i, dst + i * Format::kBytes, count - i);
  }

  static constexpr SumKernels kKernels = {sum, widen, add, narrow};
};

}  // namespace geocomm::collective
