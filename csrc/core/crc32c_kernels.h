// The loops behind crc32c(), one per instruction set. They continue a raw state, without the inversions at
// both ends.
#pragma once

#include <cstddef>
#include <cstdint>

namespace geocomm::core {

struct Crc32cLoop {
  // By the crc32 instruction, where there is one; the others leave their short ends to that. By it and
  // PCLMULQDQ beside it. By VPCLMULQDQ.
  static const Crc32cLoop kScalar, kAvx2, kAvx512;

  std::uint32_t (*update)(std::uint32_t state, const std::byte* data, std::size_t size);
};

}  // namespace geocomm::core
