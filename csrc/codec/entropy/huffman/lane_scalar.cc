#include <algorithm>
#include <cstring>

#include "codec/entropy/huffman/lane_kernels.h"

namespace geocomm::codec::huffman {
namespace {

void encode(const EncodeTable& table, LaneWriter& writer) {
  if (const std::size_t rest = writer.symbols % kLanes; rest != 0) encode_row_scalar(table, writer, rest);
  while (writer.symbols != 0) encode_row_scalar(table, writer, kLanes);
}

// With words for all lanes of the row nothing is left to check, and no branch depends on the bits.
template <bool kIsPlenty>
bool decode_row(const DecodeTable& table, LaneReader& reader, std::size_t row) {
  const std::byte* words = reader.words;
  std::byte* dst = reader.dst;
  for (std::size_t lane = 0; lane < row; ++lane) {
    std::uint32_t bits = reader.bits[lane];
    std::uint32_t held = reader.counts[lane];
    const std::uint32_t takes = held < kWordBits ? 1 : 0;
    std::uint16_t word = 0;
    if (kIsPlenty || takes != 0) {
      if (!kIsPlenty && words == reader.end) return false;
      std::memcpy(&word, words, sizeof(word));
    }
    words += takes * sizeof(word);
    bits |= (word & (0 - takes)) << ((kWordBits - held) & 31);
    held += takes * kWordBits;
    const std::uint32_t entry = table.entries[bits >> (32 - kMaxCodeBits)];
    const std::uint32_t length = entry & ((1U << kDecodeSymbolShift) - 1);
    reader.bits[lane] = bits << length;
    reader.counts[lane] = held - length;
    dst[lane] = static_cast<std::byte>(entry >> kDecodeSymbolShift);
  }
  reader.words = words;
  return true;
}

bool decode(const DecodeTable& table, LaneReader* readers, std::size_t count) {
  return std::all_of(readers, readers + count, [&](LaneReader& it) { return decode_rest_scalar(table, it); });
}

constexpr LaneKernels kLoops{encode, decode, nullptr};

}  // namespace

constinit const LaneKernels LaneKernels::kScalar = kLoops;

// A code goes above the bits that a lane holds. If that makes more than 31, the reader had fewer than 16 left
// after this code and took a word: the low 16 bits, which therefore are written first. No branch depends on
// that: what is stored and then not counted is overwritten by the next.
void encode_row_scalar(const EncodeTable& table, LaneWriter& writer, std::size_t count) {
  writer.symbols -= count;
  const std::byte* row = writer.src + writer.symbols;
  std::byte* front = writer.front;
  for (std::size_t lane = count; lane-- > 0;) {
    const std::uint32_t entry = table.entries[std::to_integer<std::size_t>(row[lane])];
    const std::uint32_t length = entry >> kMaxCodeBits;
    const std::uint32_t bits = writer.bits[lane];
    const std::uint32_t held = writer.counts[lane];
    const std::uint32_t taken = (held + length) / 32;  // 0 or 1
    const auto word = static_cast<std::uint16_t>(bits);
    std::memcpy(front - sizeof(word), &word, sizeof(word));
    front -= taken * sizeof(word);
    const std::uint32_t kept = held - taken * kWordBits;
    writer.bits[lane] = bits >> (taken * kWordBits) | (entry & ((1U << kMaxCodeBits) - 1)) << kept;
    writer.counts[lane] = kept + length;
  }
  writer.front = front;
}

bool decode_rest_scalar(const DecodeTable& table, LaneReader& reader) {
  while (reader.symbols != 0) {
    const std::size_t row = std::min<std::size_t>(reader.symbols, kLanes);
    const bool is_plenty = static_cast<std::size_t>(reader.end - reader.words) >= row * sizeof(std::uint16_t);
    if (!(is_plenty ? decode_row<true>(table, reader, row) : decode_row<false>(table, reader, row)))
      return false;
    reader.dst += row;
    reader.symbols -= row;
  }
  return reader.words == reader.end;
}

}  // namespace geocomm::codec::huffman
