// What the Huffman kernels share: codes, bytes at any address, and the heads of blocks.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"
#include "codec/cuda/elements.cuh"
#include "codec/cuda/huffman_planes.h"
#include "codec/entropy/huffman/plane_format.h"

namespace geocomm::codec::cuda {

// What the Huffman kernels share: canonical codes made by a warp, bytes at any address.

inline constexpr std::uint32_t kWholeCode = 1u << huffman::kMaxCodeBits;  // the sum of 2^-length, scaled

__device__ __forceinline__ unsigned lanes_before(unsigned mask) {
  return static_cast<unsigned>(__popc(mask & ((1u << threadIdx.x % kWarp) - 1)));
}

// Bytes of a block's part of `bytes`; 0: the plane does not have the block.
__device__ __forceinline__ std::uint32_t huffman_block_length(std::uint32_t bytes, std::uint32_t index) {
  const std::uint64_t begin = std::uint64_t{index} * huffman::kBlockBytes;
  if (begin >= bytes) return 0;
  const std::uint64_t left = bytes - begin;
  return static_cast<std::uint32_t>(left < huffman::kBlockBytes ? left : huffman::kBlockBytes);
}

__device__ __forceinline__ std::uint32_t load_any_u32(const std::uint8_t* from) {
  return is_aligned(from, 4) ? *reinterpret_cast<const std::uint32_t*>(from) : load_u32(from);
}
__device__ __forceinline__ void store_u32(std::uint8_t* to, std::uint32_t value) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(value >> 8 * i);
}

// Sum of the lanes before this one.
template <typename T>
__device__ __forceinline__ T warp_sum_before(T value) {
  T sum = value;
#pragma unroll
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const T other = __shfl_up_sync(kFullMask, sum, distance);
    if (threadIdx.x % kWarp >= distance) sum += other;
  }
  return sum - value;
}

// By one warp: entries[b] = code | length << kMaxCodeBits for every byte b with a length, 0 for others. The
// code is complete.
__device__ inline void make_codes(const std::uint8_t* lengths, std::uint32_t* entries) {
  const unsigned lane = threadIdx.x % kWarp;
  std::uint32_t count = 0;  // lane l: codes of length l
  for (unsigned group = 0; group < huffman::kSymbols; group += kWarp) {
    const unsigned length = lengths[group + lane];
    for (unsigned l = 1; l <= huffman::kMaxCodeBits; ++l) {
      const unsigned mask = __ballot_sync(kFullMask, length == l);
      if (lane == l) count += static_cast<unsigned>(__popc(mask));
    }
  }
  std::uint32_t next = 0;  // lane l: the next code of length l
  std::uint32_t code = 0;
  for (unsigned l = 1; l <= huffman::kMaxCodeBits; ++l) {
    if (lane == l) next = code;
    code = (code + __shfl_sync(kFullMask, count, static_cast<int>(l))) << 1;
  }
  for (unsigned group = 0; group < huffman::kSymbols; group += kWarp) {
    const unsigned length = lengths[group + lane];
    std::uint32_t entry = 0;
    for (unsigned l = 1; l <= huffman::kMaxCodeBits; ++l) {
      const unsigned mask = __ballot_sync(kFullMask, length == l);
      const std::uint32_t first = __shfl_sync(kFullMask, next, static_cast<int>(l));
      if (length == l) entry = (first + lanes_before(mask)) | l << huffman::kMaxCodeBits;
      if (lane == l) next += static_cast<unsigned>(__popc(mask));
    }
    entries[group + lane] = entry;
  }
}

// By `threads` threads: bytes from any address to any other. What it reads beside them is up to three bytes
// before the first, of the same aligned word.
__device__ inline void copy_bytes(std::uint8_t* to, const std::uint8_t* from, std::uint32_t bytes,
                                  unsigned thread, unsigned threads) {
  constexpr std::uint32_t kUnit = 16;
  const auto to_address = reinterpret_cast<std::uintptr_t>(to);
  std::uint32_t head = static_cast<std::uint32_t>(-to_address & (kUnit - 1));
  head = head < bytes ? head : bytes;
  const auto skew = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(from + head) & 3);
  const std::uint32_t ahead = skew == 0 ? 0 : 4 - skew;  // read with a unit, of the next one
  const std::uint32_t units = bytes - head < ahead ? 0 : (bytes - head - ahead) / kUnit;
  const unsigned selector = 0x3210u + 0x1111u * skew;
  for (std::uint32_t unit = thread; unit < units; unit += threads) {
    const std::uint32_t at = head + unit * kUnit;
    const auto* words = reinterpret_cast<const std::uint32_t*>(from + at - skew);
    std::uint32_t w[5];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = words[i];
    w[4] = skew != 0 ? words[4] : 0;
    *reinterpret_cast<uint4*>(to + at) = {
        __byte_perm(w[0], w[1], selector), __byte_perm(w[1], w[2], selector),
        __byte_perm(w[2], w[3], selector), __byte_perm(w[3], w[4], selector)};
  }
  for (std::uint32_t at = thread; at < head; at += threads) to[at] = from[at];
  for (std::uint32_t at = head + units * kUnit + thread; at < bytes; at += threads) to[at] = from[at];
}

// Heads of received planes: what their blocks are, and how many bytes the plane takes.

__device__ __forceinline__ bool is_possible_head(std::uint32_t head, std::uint32_t length, bool has_table) {
  using huffman::BlockMode;
  const std::uint32_t rest = huffman::head_rest(head);
  switch (huffman::head_mode(head)) {
    case BlockMode::Raw:
      return rest == length;
    case BlockMode::Single:
      return rest < huffman::kSymbols;
    case BlockMode::OwnTable:
      return rest < length;
    case BlockMode::LatestTable:
      return rest < length && has_table;
  }
  return false;
}

// By a warp: reads the heads of a plane of `bytes` bytes, of whose coded form `there` bytes are there at
// most, into `blocks`. `coded_bytes` becomes what it takes. False: it cannot be one. Sizes of possible heads
// are those of blocks at most, so their sum fits 32 bits.
__device__ inline bool read_plane_heads(const std::uint8_t* from, std::uint64_t there, std::uint32_t bytes,
                                        HuffmanBlock* blocks, std::uint32_t& coded_bytes) {
  using huffman::BlockMode;
  const unsigned lane = threadIdx.x % kWarp;
  const auto count = static_cast<std::uint32_t>(huffman::block_count(bytes));
  std::uint32_t at = count * static_cast<std::uint32_t>(huffman::kHeadBytes);
  std::uint32_t latest = 0;  // block with a table, + 1
  if (at > there) return false;
  for (std::uint32_t first = 0; first < count; first += kWarp) {
    const std::uint32_t index = first + lane;
    const bool is_there = index < count;
    std::uint32_t head = 0;
    if (is_there) head = load_u32(from + std::uint64_t{index} * huffman::kHeadBytes);
    const bool has_own = is_there && huffman::head_mode(head) == BlockMode::OwnTable;
    const unsigned own = __ballot_sync(kFullMask, has_own);
    const unsigned before = own & ((1u << lane) - 1);
    const std::uint32_t table = before != 0 ? first + kWarp - static_cast<unsigned>(__clz(before)) : latest;
    const bool possible = !is_there || is_possible_head(head, huffman_block_length(bytes, index), table != 0);
    std::uint32_t body = 0;
    if (is_there && possible && huffman::head_mode(head) != BlockMode::Single) {
      body = huffman::head_rest(head);
    }
    const std::uint32_t body_at = at + warp_sum_before(body);
    if (__ballot_sync(kFullMask, !possible) != 0) return false;
    if (is_there) {
      HuffmanBlock& block = blocks[index];
      block.head = head;
      block.table_block = has_own ? index : table - 1;
      block.body_at = body_at;
    }
    at = __shfl_sync(kFullMask, body_at + body, kWarp - 1);
    if (own != 0) latest = first + kWarp - static_cast<unsigned>(__clz(own));
  }
  coded_bytes = at;
  return at <= there;
}

}  // namespace geocomm::codec::cuda
