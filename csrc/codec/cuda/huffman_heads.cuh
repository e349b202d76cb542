// Heads of received planes: what their blocks are, and how many bytes the plane takes.
#pragma once

#include <cstdint>

#include "codec/cuda/huffman_device.cuh"

namespace geocomm::codec::cuda {

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
