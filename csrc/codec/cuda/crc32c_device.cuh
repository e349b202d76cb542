// CRC-32C as arithmetic on polynomials over GF(2), in the reflected order of bits that crc32c has: bit 31 is
// the coefficient of x^0. The crc of bytes in pieces is a sum: that of a piece, times x^8 for each byte
// behind it.
//
// Left out until the end are crc32c's inversions: crc0(M) is the state after M from a state of 0, and
// crc32c(M) = ~(crc0(M) + 0xFFFFFFFF * x^(8 |M|)).
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"

namespace geocomm::codec::cuda {

inline constexpr std::uint32_t kCrcPolynomial = 0x82F63B78;
inline constexpr std::uint32_t kCrcOne = 0x80000000;  // x^0

GEOCOMM_HOST_DEVICE constexpr std::uint32_t times_x(std::uint32_t value) {
  return (value >> 1) ^ ((value & 1u) != 0 ? kCrcPolynomial : 0u);
}

GEOCOMM_HOST_DEVICE constexpr std::uint32_t crc_product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (int power = 31; power >= 0; --power) {
    product ^= (a >> power & 1u) != 0 ? b : 0u;
    b = times_x(b);
  }
  return product;
}

// x^(8 bytes), by squaring.
GEOCOMM_HOST_DEVICE constexpr std::uint32_t crc_zero_bytes(std::uint64_t bytes) {
  std::uint32_t result = kCrcOne;
  std::uint32_t power = kCrcOne >> 8;
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) result = crc_product(result, power);
    power = crc_product(power, power);
  }
  return result;
}

// The state after one more byte.
GEOCOMM_HOST_DEVICE constexpr std::uint32_t crc_byte(std::uint32_t state, std::uint32_t byte) {
  state ^= byte;
  for (int bit = 0; bit < 8; ++bit) state = times_x(state);
  return state;
}

struct BytePowers {
  std::uint32_t of[32];  // x^(8 * 2^i)
};
constexpr BytePowers make_byte_powers() {
  BytePowers powers{};
  powers.of[0] = kCrcOne >> 8;
  for (int i = 1; i < 32; ++i) powers.of[i] = crc_product(powers.of[i - 1], powers.of[i - 1]);
  return powers;
}
static __device__ const BytePowers kBytePowers = make_byte_powers();

// x^(8 bytes), found by a whole warp; all of its lanes get it.
__device__ __forceinline__ std::uint32_t crc_zero_bytes_by_warp(std::uint32_t bytes) {
  const unsigned lane = threadIdx.x % kWarp;
  std::uint32_t product = (bytes >> lane & 1u) != 0 ? kBytePowers.of[lane] : kCrcOne;
#pragma unroll 1
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    product = crc_product(product, __shfl_xor_sync(kFullMask, product, distance));
  }
  return product;
}

// The final crc32c of bytes whose crc0 is known; for a whole warp.
__device__ __forceinline__ std::uint32_t crc_finished_by_warp(std::uint32_t crc0, std::uint32_t bytes) {
  return ~(crc0 ^ crc_product(0xFFFFFFFFu, crc_zero_bytes_by_warp(bytes)));
}

}  // namespace geocomm::codec::cuda
