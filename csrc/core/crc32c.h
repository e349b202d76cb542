// CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected), as in RFC 3720 appendix B.4: crc32c("123456789") ==
// 0xE3069283.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace geocomm::core {

// Continues from `previous` (0 to begin). As fast as cpu_level() allows, and with the CPU's crc32 instruction
// at every level, where there is one.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t previous = 0);
// The same without that instruction: the reference.
std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t previous = 0);

}  // namespace geocomm::core
