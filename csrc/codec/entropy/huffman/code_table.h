// Length-limited canonical Huffman codes: from counts to lengths, to and from their coded form, and the
// tables that the lanes (lane_kernels.h) work with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "codec/entropy/huffman/plane_format.h"

namespace geocomm::codec::huffman {

using Histogram = std::array<std::uint32_t, kSymbols>;

// Bits of each symbol's code, 0: the symbol has none. A code in use is complete: the sum of 2^-length is 1.
using CodeLengths = std::array<std::uint8_t, kSymbols>;

// The code for these counts. Precondition: two or more of them are not zero; their sum is at most
// kBlockBytes.
CodeLengths make_code_lengths(const Histogram& counts);

// Bits that a code takes for these counts; nullopt where a symbol that occurs has no code.
std::optional<std::size_t> coded_bits(const Histogram& counts, const CodeLengths& lengths);

// Bytes of the coded form; that form, written to `dst`.
std::size_t table_bytes(const CodeLengths& lengths);
void write_table(const CodeLengths& lengths, std::byte* dst);

struct ParsedTable {
  CodeLengths lengths;
  std::size_t bytes;
};
// Reads the table that `coded` begins with. nullopt: it is not all there, or no complete code.
std::optional<ParsedTable> parse_table(std::span<const std::byte> coded);

// Per symbol: code | length << kMaxCodeBits. 0 where there is no code.
struct alignas(64) EncodeTable {
  std::array<std::uint32_t, kSymbols> entries;
};
void make_encode_table(const CodeLengths& lengths, EncodeTable& table);

// For the next kMaxCodeBits bits of a lane: length | symbol << kDecodeSymbolShift.
inline constexpr unsigned kDecodeSymbolShift = 8;
struct alignas(64) DecodeTable {
  std::array<std::uint32_t, std::size_t{1} << kMaxCodeBits> entries;
};
void make_decode_table(const CodeLengths& lengths, DecodeTable& table);

}  // namespace geocomm::codec::huffman
