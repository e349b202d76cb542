// For files that are compiled for one CPU level: all is local to the file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace geocomm::codec {
namespace {

// Asks for what lies ahead of `at`, in the last pass over a block: the processor's own guesses stop there,
// since the block comes from the cache. In the first pass they work, and to ask as well cost time, as did
// half the distance (benchmarks/results/kernels.md). Any address will do.
template <std::size_t kBytes>
[[gnu::always_inline]] inline void prefetch_ahead(const std::byte* at) {
  constexpr std::uintptr_t kAhead = 2048;
  constexpr std::size_t kLine = 64;
  for (std::size_t line = 0; line < kBytes; line += kLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(at) + kAhead + line));
  }
}

}  // namespace
}  // namespace geocomm::codec
