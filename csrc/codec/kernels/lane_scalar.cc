#include <algorithm>
#include <cstring>

#include "codec/kernels/lane_kernels.h"
#include "core/cpu.h"

namespace geocomm::codec::huffman {
namespace {

void encode(const EncodeTable& table, LaneWriter& writer) {
  if (const std::size_t rest = writer.symbols % kLanes; rest != 0) encode_row_scalar(table, writer, rest);
  while (writer.symbols != 0) encode_row_scalar(table, writer, kLanes);
}

bool decode(const DecodeTable& table, LaneReader* readers, std::size_t count) {
  return std::all_of(readers, readers + count, [&](LaneReader& it) { return decode_rest_scalar(table, it); });
}

constexpr LaneKernels kScalar{&encode, &decode};

}  // namespace

// A code goes above the bits that a lane holds. If that made more than 31, the reader had fewer than 16 left
// after this code and took a word: the low 16 bits, which therefore are written first.
void encode_row_scalar(const EncodeTable& table, LaneWriter& writer, std::size_t count) {
  writer.symbols -= count;
  const std::byte* row = writer.src + writer.symbols;
  for (std::size_t lane = count; lane-- > 0;) {
    const std::uint32_t entry = table.entries[std::to_integer<std::size_t>(row[lane])];
    const std::uint32_t length = entry >> kMaxCodeBits;
    std::uint32_t bits = writer.bits[lane];
    std::uint32_t held = writer.counts[lane];
    if (held + length > 31) {
      const auto word = static_cast<std::uint16_t>(bits);
      writer.front -= sizeof(word);
      std::memcpy(writer.front, &word, sizeof(word));
      bits >>= kWordBits;
      held -= kWordBits;
    }
    writer.bits[lane] = bits | (entry & ((1U << kMaxCodeBits) - 1)) << held;
    writer.counts[lane] = held + length;
  }
}

bool decode_rest_scalar(const DecodeTable& table, LaneReader& reader) {
  while (reader.symbols != 0) {
    const std::size_t row = std::min<std::size_t>(reader.symbols, kLanes);
    for (std::size_t lane = 0; lane < row; ++lane) {
      std::uint32_t bits = reader.bits[lane];
      std::uint32_t held = reader.counts[lane];
      if (held < kWordBits) {
        if (reader.words == reader.end) return false;
        std::uint16_t word;
        std::memcpy(&word, reader.words, sizeof(word));
        reader.words += sizeof(word);
        bits |= std::uint32_t{word} << (kWordBits - held);
        held += kWordBits;
      }
      const std::uint32_t entry = table.entries[bits >> (32 - kMaxCodeBits)];
      const std::uint32_t length = entry & ((1U << kDecodeSymbolShift) - 1);
      reader.bits[lane] = bits << length;
      reader.counts[lane] = held - length;
      reader.dst[lane] = static_cast<std::byte>(entry >> kDecodeSymbolShift);
    }
    reader.dst += row;
    reader.symbols -= row;
  }
  return reader.words == reader.end;
}

const LaneKernels* lane_kernels_scalar() {
  return &kScalar;
}

const LaneKernels& lane_kernels() {
  return kScalar;
}

}  // namespace geocomm::codec::huffman
