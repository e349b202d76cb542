// Arithmetic of CRC-32C: polynomials over GF(2) modulo the Castagnoli polynomial, reflected as the CRC is:
// bit 31 is the coefficient of x^0, bit 0 that of x^31.
//
// All of it is for compile time, so that the files of one instruction set share no code through this header.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace geocomm::core {

inline constexpr std::uint32_t kCrc32cPolynomial = 0x82F63B78;  // without its x^32

// a * x
GEOCOMM_HOST_DEVICE constexpr std::uint32_t crc32c_times_x(std::uint32_t a) {
  return (a >> 1) ^ ((a & 1) != 0 ? kCrc32cPolynomial : 0);
}

// a * b
GEOCOMM_HOST_DEVICE constexpr std::uint32_t crc32c_multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = std::uint32_t{1} << 31; bit != 0; bit >>= 1, b = crc32c_times_x(b)) {
    if ((a & bit) != 0) product ^= b;
  }
  return product;
}

// x^n
constexpr std::uint32_t crc32c_x_power(std::uint64_t n) {
  std::uint32_t power = std::uint32_t{1} << 31;
  for (std::uint32_t square = power >> 1; n != 0; n >>= 1, square = crc32c_multiply(square, square)) {
    if ((n & 1) != 0) power = crc32c_multiply(power, square);
  }
  return power;
}

// A carry-less product of two reflected words comes out one bit low, that is, multiplied by x: the constants
// below are a power less for it.

// The factor for _mm_crc32_u64(0, clmul(state, factor)), which moves a state over `bytes` zero bytes: the
// instruction multiplies by x^32.
constexpr std::uint64_t crc32c_shift_factor(std::uint64_t bytes) {
  return crc32c_x_power(8 * bytes - 33);
}

// The factors for the first and the second 8 bytes of a 16-byte accumulator that moves on by `bytes` (16 or
// more).
constexpr std::uint64_t crc32c_fold_factor_first(std::uint64_t bytes) {
  return std::uint64_t{crc32c_x_power(8 * bytes + 63)} << 32;
}
constexpr std::uint64_t crc32c_fold_factor_second(std::uint64_t bytes) {
  return std::uint64_t{crc32c_x_power(8 * bytes - 1)} << 32;
}

}  // namespace geocomm::core
