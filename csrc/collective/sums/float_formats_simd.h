// Storage formats of floats on vectors V (codec/simd), as sum_loops.h and feedback_loops.h take them. All is
// local to the file that includes it.
#pragma once

#include <cstddef>

#include "codec/frames/vector_elements.h"
#include "core/dtype.h"

namespace geocomm::collective {
namespace {

template <typename V, core::DType kType>
struct FloatFormat {
  using Vector = V;
  static constexpr std::size_t kIndex = codec::compressible_index(kType);
  static constexpr std::size_t kBytes = core::size_of(kType);

  // Of elements at any address; a NaN may become quiet on the way.
  static typename V::Floats load(const std::byte* from) { return codec::load_vector<V, kType>(from, 0); }
  // With every NaN's bits.
  static typename V::Floats load_exact(const std::byte* from) {
    if constexpr (kType == core::DType::Float16) return codec::load_half_exactly<V>(from);
    return load(from);
  }
  static void store(std::byte* to, typename V::Floats floats) {
    codec::store_narrowed<V, kType, false>(to, 0, floats);
  }
};

// The tables of all formats.
template <typename Family, typename V, template <typename> typename Loops>
constexpr Family make_family() {
  using core::DType;
  return {{Loops<FloatFormat<V, DType::Float32>>::kKernels, Loops<FloatFormat<V, DType::Float16>>::kKernels,
           Loops<FloatFormat<V, DType::BFloat16>>::kKernels}};
}

}  // namespace
}  // namespace geocomm::collective
