// Words of 16 bits as a high and a low byte each, rotated left by one before, so that the sign is the lowest
// bit: four at a time.
#pragma once

#include <cstdint>

#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/device.h"
#include "codec/cuda/huffman_device.cuh"

namespace geocomm::codec::cuda {

// Elements as they are in memory.
struct Words {
  std::uint32_t w[4];
};

// `count` of the four are there, the rest becomes 0.
template <core::DType kType>
__device__ __forceinline__ Words load_words(const std::uint8_t* from, unsigned count) {
  Words words;
  if constexpr (kType == core::DType::Float32) {
    if (count == 4 && is_aligned(from, 16)) {
      const uint4 loaded = *reinterpret_cast<const uint4*>(from);
      return {{loaded.x, loaded.y, loaded.z, loaded.w}};
    }
    const auto* elements = reinterpret_cast<const std::uint32_t*>(from);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) words.w[c] = c < count ? elements[c] : 0;
  } else {
    if (count == 4 && is_aligned(from, 8)) {
      const uint2 loaded = *reinterpret_cast<const uint2*>(from);
      return {{loaded.x & 0xFFFFu, loaded.x >> 16, loaded.y & 0xFFFFu, loaded.y >> 16}};
    }
    const auto* elements = reinterpret_cast<const std::uint16_t*>(from);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) words.w[c] = c < count ? elements[c] : 0;
  }
  return words;
}

__device__ __forceinline__ std::uint32_t rotated_left(std::uint32_t word) {
  return (word << 1 | word >> 15) & 0xFFFFu;
}
__device__ __forceinline__ std::uint32_t rotated_right(std::uint32_t word) {
  return (word >> 1 | word << 15) & 0xFFFFu;
}

__device__ __forceinline__ std::uint32_t low_bytes(const Words& words) {
  return low_bytes(words.w[0], words.w[1], words.w[2], words.w[3]);
}
__device__ __forceinline__ std::uint32_t high_bytes(const Words& words) {
  return low_bytes(words.w[0] >> 8, words.w[1] >> 8, words.w[2] >> 8, words.w[3] >> 8);
}

// The c-th word of four high and four low bytes.
__device__ __forceinline__ std::uint32_t word_of(std::uint32_t high, std::uint32_t low, unsigned c) {
  return (high >> 8 * c & 0xFFu) << 8 | (low >> 8 * c & 0xFFu);
}

// `count` bytes from any address.
__device__ __forceinline__ std::uint32_t load_bytes(const std::uint8_t* from, unsigned count) {
  if (count == 4) return load_any_u32(from);
  std::uint32_t bytes = 0;
  for (unsigned c = 0; c < count; ++c) bytes |= std::uint32_t{from[c]} << 8 * c;
  return bytes;
}

}  // namespace geocomm::codec::cuda
