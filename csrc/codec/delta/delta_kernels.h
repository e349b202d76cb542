// The loop of deltas over the words of two tensors, at each CPU level; the scalar one is the reference.
#pragma once

#include <cstddef>
#include <cstdint>

namespace geocomm::codec {

inline constexpr std::size_t kDeltaGroup = 64;  // words whose fate fits into one word

struct DeltaKernels {
  static const DeltaKernels kScalar, kAvx2, kAvx512, kNeon;

  // A bit for each word, the first in the lowest: whether it differs. `count` is a multiple of kDeltaGroup.
  using Compare = void (*)(const std::byte* base, const std::byte* values, std::size_t count,
                           std::uint64_t* differs);
  Compare compare[3];  // words of 1, 2 and 4 bytes
};

}  // namespace geocomm::codec
