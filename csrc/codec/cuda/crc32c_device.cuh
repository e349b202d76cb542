// CRC-32C in the arithmetic of core/crc32c_polynomial.h. The crc of bytes in pieces is a sum: that of a
// piece, times x^8 for each byte behind it.
//
// Left out until the end are crc32c's inversions: crc0(M) is the state after M from a state of 0, and
// crc32c(M) = ~(crc0(M) + 0xFFFFFFFF * x^(8 |M|)).
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"
#include "core/crc32c_polynomial.h"

namespace geocomm::codec::cuda {

using core::crc32c_multiply;
using core::crc32c_x_power;

inline constexpr std::uint32_t kCrcOne = crc32c_x_power(0);

// The state after one more byte.
GEOCOMM_HOST_DEVICE constexpr std::uint32_t crc_byte(std::uint32_t state, std::uint32_t byte) {
  state ^= byte;
  for (int bit = 0; bit < 8; ++bit) state = core::crc32c_times_x(state);
  return state;
}

struct BytePowers {
  std::uint32_t of[32];  // x^(8 * 2^i)
};
constexpr BytePowers make_byte_powers() {
  BytePowers powers{};
  for (int i = 0; i < 32; ++i) powers.of[i] = crc32c_x_power(std::uint64_t{8} << i);
  return powers;
}
static __device__ const BytePowers kBytePowers = make_byte_powers();

// x^(8 bytes), found by a whole warp; all of its lanes get it.
__device__ __forceinline__ std::uint32_t crc_zero_bytes_by_warp(std::uint32_t bytes) {
  const unsigned lane = threadIdx.x % kWarp;
  std::uint32_t product = (bytes >> lane & 1u) != 0 ? kBytePowers.of[lane] : kCrcOne;
#pragma unroll 1
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    product = crc32c_multiply(product, __shfl_xor_sync(kFullMask, product, distance));
  }
  return product;
}

// The final crc32c of bytes whose crc0 is known; for a whole warp.
__device__ __forceinline__ std::uint32_t crc_finished_by_warp(std::uint32_t crc0, std::uint32_t bytes) {
  return ~(crc0 ^ crc32c_multiply(0xFFFFFFFFu, crc_zero_bytes_by_warp(bytes)));
}

}  // namespace geocomm::codec::cuda
