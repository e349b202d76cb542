// The loops behind crc32c(), one per instruction set. They continue a raw state, without the inversions at
// both ends.
#pragma once

#include <cstddef>
#include <cstdint>

namespace geocomm::core {

using Crc32cUpdate = std::uint32_t (*)(std::uint32_t state, const std::byte* data, std::size_t size);

// The crc32 instruction; null where the CPU lacks it. The others leave their short ends to it.
Crc32cUpdate crc32c_sse42();
// That and PCLMULQDQ beside it; VPCLMULQDQ. null on other architectures; else the caller checks the CPU.
Crc32cUpdate crc32c_avx2();
Crc32cUpdate crc32c_avx512();

}  // namespace geocomm::core
