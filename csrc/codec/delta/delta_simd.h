// The loop of DeltaKernels on vectors V (codec/simd). All is local to the file that includes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/delta/delta_kernels.h"

namespace geocomm::codec {
namespace {

// Bits of the first words that differ, of V::kBytes of them, or of V::kLanes where they have four bytes.
template <typename V, std::size_t kWordBytes>
[[gnu::always_inline]] inline std::uint64_t differing(const std::byte* base, const std::byte* values) {
  const auto both = [&](std::size_t at) { return V::load_ints(base + at) ^ V::load_ints(values + at); };
  if constexpr (kWordBytes == 1) {
    return V::nonzero_bytes(both(0));
  } else if constexpr (kWordBytes == 2) {
    return V::nonzero_words(both(0), both(V::kBytes));
  } else {
    const auto difference = both(0);
    const auto zero = V::set_int(0);
    return V::bits_of(V::greater(difference, zero)) | V::bits_of(V::greater(zero, difference));
  }
}

template <typename V, std::size_t kWordBytes>
void differing_words(const std::byte* base, const std::byte* values, std::size_t count,
                     std::uint64_t* differs) {
  constexpr std::size_t kWords = kWordBytes == 4 ? V::kLanes : V::kBytes;
  for (std::size_t first = 0; first < count; first += kDeltaGroup) {
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < kDeltaGroup; i += kWords) {
      const std::size_t at = (first + i) * kWordBytes;
      bits |= differing<V, kWordBytes>(base + at, values + at) << i;
    }
    *differs++ = bits;
  }
}

template <typename V>
inline constexpr DeltaKernels kDeltaLoops = {
    {differing_words<V, 1>, differing_words<V, 2>, differing_words<V, 4>}};

}  // namespace
}  // namespace geocomm::codec
