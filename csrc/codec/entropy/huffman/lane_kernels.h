// Family of the Huffman lanes: a substream's symbols, dealt in rows to 32 lanes that share one stream of
// 16-bit words. docs/spec/codecs.md has the steps. A row is read as: every lane that holds fewer than 16 bits
// takes the next word, in order of the lanes; then each takes a code off its bits. The encoder does the same
// backward, from the last symbol to the first, and so knows when the reader will take a word.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/entropy/huffman/code_table.h"
#include "codec/entropy/huffman/plane_format.h"

namespace geocomm::codec::huffman {

// Where a few symbols are most of a plane, they are counted in registers.
inline constexpr std::size_t kCommonSymbols = 8;
inline constexpr std::size_t kCountedAtOnce = 4096;
inline constexpr std::size_t kCountSlack = 64;
using CommonSymbols = std::array<std::uint8_t, kCommonSymbols>;
using CommonCounts = std::array<std::uint32_t, kCommonSymbols>;

using LaneWords = std::array<std::uint32_t, kLanes>;

// Symbol i is lane i % 32's. `bits` hold `counts` bits in their low end, the next to be read first.
struct LaneWriter {
  alignas(64) LaneWords bits;
  alignas(64) LaneWords counts;
  const std::byte* src;
  std::size_t symbols;
  std::byte* front;  // where the latest word begins; the next goes before it
};

// `bits` hold `counts` bits in their high end, the next first, and below them zeros.
struct LaneReader {
  alignas(64) LaneWords bits;
  alignas(64) LaneWords counts;
  std::byte* dst;
  std::size_t symbols;     // left
  const std::byte* words;  // next
  const std::byte* end;    // of the words
};

struct LaneKernels {
  static const LaneKernels kScalar, kAvx2, kAvx512;

  // Encodes all symbols. On entry each lane's count is 16 less its last symbol's length, its bits zero; on
  // exit the lanes hold what the reader holds before its first codes, 16 to 31 bits. There is room before
  // `front` for the words, and for 16 bytes more that may be written.
  void (*encode)(const EncodeTable& table, LaneWriter& writer);
  // Decodes all symbols of one or four readers, whose first three have equally many, in whole rows. On entry
  // a lane holds at most 15 bits. False: words lacked, or were left over. Writes nothing beyond dst +
  // symbols, reads nothing beyond `end`.
  bool (*decode)(const DecodeTable& table, LaneReader* readers, std::size_t count);
  // Adds to `counts` how often the `common` symbols, each another, occur in `src`, of at most kCountedAtOnce,
  // and writes the other symbols, in order, to `rest`, which has room for kCountedAtOnce + kCountSlack.
  // Returns how many those are. Null where counting all by tables is as fast.
  std::size_t (*count_common)(std::span<const std::byte> src, const CommonSymbols& common,
                              CommonCounts& counts, std::byte* rest);
};

// Steps of the scalar kernels, for what the wide ones leave over.
// The last `count` symbols that are left, all of one row: encodes them and takes them off writer.symbols.
void encode_row_scalar(const EncodeTable& table, LaneWriter& writer, std::size_t count);
// All that is left of a substream.
bool decode_rest_scalar(const DecodeTable& table, LaneReader& reader);

}  // namespace geocomm::codec::huffman
