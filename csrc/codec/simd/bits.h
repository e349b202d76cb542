// Bits of words, for files that are compiled for one CPU level: std::popcount and its like are shared
// functions where they are not inlined.
#pragma once

#include <cstddef>
#include <cstdint>

namespace geocomm::codec {
namespace {

[[gnu::always_inline]] inline std::size_t count_ones(std::uint64_t word) {
  return static_cast<std::size_t>(__builtin_popcountll(word));
}

// How many zeros stand below the lowest one; 64 where there is none.
[[gnu::always_inline]] inline std::size_t zeros_below(std::uint64_t word) {
  return word == 0 ? 64 : static_cast<std::size_t>(__builtin_ctzll(word));
}

}  // namespace
}  // namespace geocomm::codec
