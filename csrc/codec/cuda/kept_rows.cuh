// Elements that are kept, or not, a bit each: counted and told their places by warps, a row of up to 128 at a
// time, four to a lane.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"
#include "codec/cuda/huffman_device.cuh"

namespace geocomm::codec::cuda {

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
