// The loops of sum_kernels.h on vectors, for a FloatFormat (float_formats_simd.h). What is left after the
// whole vectors is the scalar table's.
#pragma once

#include <cstddef>

#include "collective/sums/sum_kernels.h"

namespace geocomm::collective {

template <typename Format>
struct SumLoops {
  using V = typename Format::Vector;
  using Floats = typename V::Floats;
  static constexpr std::size_t kLanes = V::kLanes;
  static constexpr std::size_t kVectors = 4;  // side by side: an addition takes cycles

  static Floats added(Floats sum, Floats value) {
    return V::sum(sum, V::floats(V::select(V::is_nan(sum), V::bits(sum), V::bits(value))));
  }

  static void sum(const std::byte* const* sources, std::size_t source_count, std::byte* dst,
                  std::size_t begin, std::size_t end, float divisor) {
    const Floats by = V::set(divisor);
    const auto place = [](std::size_t i, std::size_t v) { return (i + v * kLanes) * Format::kBytes; };
    for (; end - begin >= kVectors * kLanes; begin += kVectors * kLanes) {
      Floats sums[kVectors];
      for (std::size_t v = 0; v < kVectors; ++v) sums[v] = Format::load(sources[0] + place(begin, v));
      for (std::size_t s = 1; s < source_count; ++s) {
        const std::byte* const from = sources[s];
        for (std::size_t v = 0; v < kVectors; ++v) {
          sums[v] = added(sums[v], Format::load(from + place(begin, v)));
        }
      }
      if (divisor != 1.0f) {
        for (std::size_t v = 0; v < kVectors; ++v) sums[v] = sums[v] / by;
      }
      for (std::size_t v = 0; v < kVectors; ++v) Format::store(dst + place(begin, v), sums[v]);
    }
    SumFamily::kScalar.formats[Format::kIndex].sum(sources, source_count, dst, begin, end, divisor);
  }

  static void widen(const std::byte* elements, float* sums, std::size_t count) {
    std::size_t i = 0;
    for (; count - i >= kLanes; i += kLanes) {
      V::store(sums + i, Format::load_exact(elements + i * Format::kBytes));
    }
    SumFamily::kScalar.formats[Format::kIndex].widen(elements + i * Format::kBytes, sums + i, count - i);
  }

  static void add(const std::byte* elements, float* sums, std::size_t count) {
    std::size_t i = 0;
    for (; count - i >= kLanes; i += kLanes) {
      const Floats value = Format::load(elements + i * Format::kBytes);
      V::store(sums + i, added(V::load(sums + i), value));
    }
    SumFamily::kScalar.formats[Format::kIndex].add(elements + i * Format::kBytes, sums + i, count - i);
  }

  static void narrow(const float* sums, std::byte* dst, std::size_t count) {
    std::size_t i = 0;
    for (; count - i >= kLanes; i += kLanes) {
      Format::store(dst + i * Format::kBytes, V::load(sums + i));
    }
    SumFamily::kScalar.formats[Format::kIndex].narrow(sums + i, dst + i * Format::kBytes, count - i);
  }

  static constexpr SumKernels kKernels = {sum, widen, add, narrow};
};

}  // namespace geocomm::collective
