// Layout of a Huffman-coded plane: blocks, their heads, the substreams of a block. docs/spec/codecs.md has
// the words to it. Everything that CPU and GPU must agree on, and nothing that runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"

namespace geocomm::codec::huffman {

inline constexpr std::size_t kBlockBytes = 131072;  // symbols per block; the last block may have fewer
inline constexpr unsigned kMaxCodeBits = 12;
inline constexpr unsigned kSymbols = 256;
inline constexpr unsigned kLanes = 32;

// What a block's body holds.
enum class BlockMode : std::uint32_t {
  Raw = 0,          // the symbols as they are
  Single = 1,       // nothing: the head's low bits are the one symbol
  OwnTable = 2,     // a table, then substreams
  LatestTable = 3,  // substreams, coded by the table of the latest block before this with OwnTable
};

// A block's head: its mode in the top two bits, below them the bytes of its body (Single: the symbol).
inline constexpr unsigned kModeShift = 30;
inline constexpr std::uint32_t kHeadMask = (std::uint32_t{1} << kModeShift) - 1;
inline constexpr std::size_t kHeadBytes = sizeof(std::uint32_t);
GEOCOMM_HOST_DEVICE constexpr std::uint32_t make_head(BlockMode mode, std::uint32_t rest) {
  return static_cast<std::uint32_t>(mode) << kModeShift | rest;
}
GEOCOMM_HOST_DEVICE constexpr BlockMode head_mode(std::uint32_t head) {
  return static_cast<BlockMode>(head >> kModeShift);
}
GEOCOMM_HOST_DEVICE constexpr std::uint32_t head_rest(std::uint32_t head) {
  return head & kHeadMask;
}

GEOCOMM_HOST_DEVICE constexpr std::size_t block_count(std::size_t plane_bytes) {
  return (plane_bytes + kBlockBytes - 1) / kBlockBytes;
}
GEOCOMM_HOST_DEVICE constexpr std::size_t block_length(std::size_t plane_bytes, std::size_t index) {
  const std::size_t left = plane_bytes - index * kBlockBytes;
  return left < kBlockBytes ? left : kBlockBytes;
}

// Table: a bit per symbol that has a code, then length - 1 of each of them in four bits, low half first; one
// zero byte more where that makes the size even.
inline constexpr std::size_t kTableBitmapBytes = kSymbols / 8;
GEOCOMM_HOST_DEVICE constexpr std::size_t table_bytes(unsigned coded_symbols) {
  return kTableBitmapBytes + (coded_symbols + 3) / 4 * 2;
}
inline constexpr std::size_t kMaxTableBytes = table_bytes(kSymbols);

// How a block's symbols are split into substreams.
inline constexpr std::size_t kMaxSubstreams = 4;
inline constexpr std::size_t kSplitFrom = 8192;  // blocks of as many bytes have four substreams, others one
GEOCOMM_HOST_DEVICE constexpr std::size_t substream_count(std::size_t block_bytes) {
  return block_bytes >= kSplitFrom ? kMaxSubstreams : 1;
}
// Symbols of every substream but the last, which has the rest: whole rows.
GEOCOMM_HOST_DEVICE constexpr std::size_t substream_step(std::size_t block_bytes) {
  return block_bytes >= kSplitFrom ? block_bytes / (kMaxSubstreams * kLanes) * kLanes : block_bytes;
}
GEOCOMM_HOST_DEVICE constexpr std::size_t substream_length(std::size_t block_bytes, std::size_t index) {
  const std::size_t step = substream_step(block_bytes);
  return index + 1 == substream_count(block_bytes) ? block_bytes - index * step : step;
}
// Before the first of four substreams: the bytes of the first three, each as u32.
GEOCOMM_HOST_DEVICE constexpr std::size_t split_bytes(std::size_t block_bytes) {
  return block_bytes >= kSplitFrom ? (kMaxSubstreams - 1) * sizeof(std::uint32_t) : 0;
}

// Substream: how many carried bits each lane begins with (four bits per lane, low half first), those bits
// (lane after lane, the first in the lowest bits, zero bits up to a whole word), then 16-bit words.
inline constexpr unsigned kWordBits = 16;
inline constexpr std::size_t kCarryCountBytes = kLanes / 2;
GEOCOMM_HOST_DEVICE constexpr std::size_t carry_bytes(unsigned carried_bits) {
  return (carried_bits + 15) / 16 * 2;
}
// What a substream takes beyond its coded bits: at most 78 bytes, and an estimate that is even and above.
inline constexpr std::size_t kSubstreamOverhead = 80;

// What decides between coding and raw: never less than what the body takes.
GEOCOMM_HOST_DEVICE constexpr std::size_t body_estimate(std::size_t block_bytes, std::size_t table,
                                                        std::size_t coded_bits) {
  return table + split_bytes(block_bytes) + substream_count(block_bytes) * kSubstreamOverhead +
         (coded_bits + 7) / 8;
}
// Coded unless that gains less than so much of the block: to decode takes time, too.
inline constexpr unsigned kLeastGainPercent = 5;
GEOCOMM_HOST_DEVICE constexpr bool is_worth_coding(std::size_t block_bytes, std::size_t estimate,
                                                   unsigned least_gain_percent = kLeastGainPercent) {
  return 100 * estimate <= (100 - least_gain_percent) * block_bytes;
}

}  // namespace geocomm::codec::huffman
