// Planes of bytes, and bitmaps of what is kept.
#pragma once

#include <cstdint>

#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/device.h"
#include "codec/cuda/huffman.cuh"

namespace geocomm::codec::cuda {

// Words of 16 bits as a high and a low byte each, rotated left by one before, so that the sign is the lowest
// bit: four at a time.

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

// Elements that are kept, or not, a bit each: counted and told their places by warps, a row of up to 128 at a
// time, four to a lane.

// What of a row is kept, in the order of its elements.
struct KeptRow {
  unsigned before;  // of this lane's
  unsigned total;
};

// `nibble`: this lane's four bits. The row is that of `lanes` lanes side by side, 16 or all.
__device__ __forceinline__ KeptRow count_kept(unsigned nibble, unsigned lanes) {
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned own = lanes == kWarp ? kFullMask : 0xFFFFu << (lane & ~(lanes - 1));
  const unsigned earlier = own & ((1u << lane) - 1);
  KeptRow kept{0, 0};
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) {
    const unsigned mask = __ballot_sync(kFullMask, static_cast<int>(nibble >> c & 1u));
    kept.before += static_cast<unsigned>(__popc(mask & earlier));
    kept.total += static_cast<unsigned>(__popc(mask & own));
  }
  return kept;
}

// The four bits of each of eight lanes as a word, which the first of them stores.
__device__ __forceinline__ void store_bits(unsigned nibble, bool is_there, std::uint8_t* to) {
  const unsigned lane = threadIdx.x % kWarp;
  std::uint32_t word = nibble << lane % 8 * 4;
  word |= __shfl_xor_sync(kFullMask, word, 1);
  word |= __shfl_xor_sync(kFullMask, word, 2);
  word |= __shfl_xor_sync(kFullMask, word, 4);
  if (lane % 8 == 0 && is_there) *reinterpret_cast<std::uint32_t*>(to) = word;
}

// The bits of 1 to 32 elements that a bitmap, at any address, has at `from`; those behind them in the last
// byte as well.
__device__ __forceinline__ std::uint32_t load_bits(const std::uint8_t* from, unsigned elements) {
  if (elements > 24) return load_any_u32(from);
  std::uint32_t bits = from[0];
  if (elements > 8) bits |= std::uint32_t{from[1]} << 8;
  if (elements > 16) bits |= std::uint32_t{from[2]} << 16;
  return bits;
}

}  // namespace geocomm::codec::cuda
