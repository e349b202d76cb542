#include "codec/entropy/huffman/code_table.h"

#include <algorithm>
#include <cstring>

namespace geocomm::codec::huffman {
namespace {

constexpr std::uint32_t kWhole = std::uint32_t{1} << kMaxCodeBits;  // the sum of 2^-length, scaled
using LengthCounts = std::array<std::uint32_t, kMaxCodeBits + 1>;

constexpr std::uint32_t share(unsigned length) {
  return kWhole >> length;
}

// The symbols that occur, by (count, symbol) ascending, as symbol | count << 8.
struct SortedSymbols {
  std::array<std::uint32_t, kSymbols> keys;
  std::size_t size = 0;
};

// Radix sort by two digits of nine bits: 18 hold kBlockBytes.
SortedSymbols sort_symbols(const Histogram& counts) {
  constexpr unsigned kDigitBits = 9;
  constexpr unsigned kDigits = 1U << kDigitBits;
  static_assert(kBlockBytes < std::size_t{1} << (2 * kDigitBits));
  SortedSymbols from;
  for (std::uint32_t symbol = 0; symbol < kSymbols; ++symbol) {
    from.keys[from.size] = symbol | counts[symbol] << 8;
    from.size += counts[symbol] != 0;
  }
  SortedSymbols to;
  to.size = from.size;
  for (const unsigned shift : {8U, 8U + kDigitBits}) {
    std::array<std::uint16_t, kDigits> places{};
    for (std::size_t i = 0; i < from.size; ++i) ++places[from.keys[i] >> shift & (kDigits - 1)];
    std::uint16_t next = 0;
    for (auto& place : places) {
      const std::uint16_t here = place;
      place = next;
      next = static_cast<std::uint16_t>(next + here);
    }
    for (std::size_t i = 0; i < from.size; ++i) {
      to.keys[places[from.keys[i] >> shift & (kDigits - 1)]++] = from.keys[i];
    }
    std::swap(from, to);
  }
  return from;
}

// How many codes of each length Huffman's algorithm gives, those beyond the limit counted at the limit.
// Two queues, leaves and inner nodes, are both in order of weight; of equal weights a leaf is taken first.
LengthCounts count_lengths(const SortedSymbols& sorted) {
  const std::size_t leaves = sorted.size;
  std::array<std::uint32_t, 2 * kSymbols> weights;
  std::array<std::uint16_t, 2 * kSymbols> parents;
  for (std::size_t i = 0; i < leaves; ++i) weights[i] = sorted.keys[i] >> 8;
  std::size_t leaf = 0;
  std::size_t inner = leaves;
  std::size_t end = leaves;
  const auto take = [&] {
    const bool is_leaf = leaf < leaves && (inner == end || weights[leaf] <= weights[inner]);
    return is_leaf ? leaf++ : inner++;
  };
  for (; end < 2 * leaves - 1; ++end) {
    const std::size_t a = take();
    const std::size_t b = take();
    weights[end] = weights[a] + weights[b];
    parents[a] = parents[b] = static_cast<std::uint16_t>(end);
  }
  std::array<std::uint16_t, 2 * kSymbols> depths;
  LengthCounts lengths{};
  depths[end - 1] = 0;
  for (std::size_t i = end - 1; i-- > 0;) {
    depths[i] = static_cast<std::uint16_t>(depths[parents[i]] + 1);
    if (i < leaves) ++lengths[std::min<unsigned>(depths[i], kMaxCodeBits)];
  }
  return lengths;
}

// Makes the code complete again after lengths were cut to the limit. While it is too large, one of the
// longest codes below the limit grows by a bit. The last such step may leave a gap, smaller than what the
// step gave; then codes at the limit are shortened, each by as much as fits. There are always enough of
// those: in units of 2^-limit a gap of 2^m - e is left only by e or more codes at the limit.
void fit_to_limit(LengthCounts& lengths) {
  std::uint32_t sum = 0;
  for (unsigned length = 1; length <= kMaxCodeBits; ++length) sum += lengths[length] * share(length);
  while (sum > kWhole) {
    unsigned length = kMaxCodeBits - 1;
    while (lengths[length] == 0) --length;
    --lengths[length];
    ++lengths[length + 1];
    sum -= share(length + 1);
  }
  while (sum < kWhole) {
    unsigned length = kMaxCodeBits;
    while (share(length - 1) - 1 <= kWhole - sum) --length;
    --lengths[kMaxCodeBits];
    ++lengths[length];
    sum += share(length) - 1;
  }
}

// First code of each length: shorter codes first, those of one length by symbol.
std::array<std::uint32_t, kMaxCodeBits + 1> first_codes(const CodeLengths& lengths) {
  LengthCounts counts{};
  for (const auto length : lengths) ++counts[length];
  std::array<std::uint32_t, kMaxCodeBits + 1> first{};
  std::uint32_t code = 0;
  for (unsigned length = 1; length <= kMaxCodeBits; ++length) {
    first[length] = code;
    code = (code + counts[length]) << 1;
  }
  return first;
}

}  // namespace

CodeLengths make_code_lengths(const Histogram& counts) {
  const SortedSymbols sorted = sort_symbols(counts);
  LengthCounts lengths = count_lengths(sorted);
  fit_to_limit(lengths);
  CodeLengths code{};
  unsigned length = kMaxCodeBits;
  for (std::size_t i = 0; i < sorted.size; ++i) {
    while (lengths[length] == 0) --length;
    --lengths[length];
    code[sorted.keys[i] & 0xFF] = static_cast<std::uint8_t>(length);
  }
  return code;
}

std::optional<std::size_t> coded_bits(const Histogram& counts, const CodeLengths& lengths) {
  std::uint32_t bits = 0;
  bool lacks = false;
  for (std::size_t symbol = 0; symbol < kSymbols; ++symbol) {
    bits += counts[symbol] * lengths[symbol];
    lacks |= counts[symbol] != 0 && lengths[symbol] == 0;
  }
  if (lacks) return std::nullopt;
  return bits;
}

std::size_t table_bytes(const CodeLengths& lengths) {
  return table_bytes(static_cast<unsigned>(kSymbols - std::ranges::count(lengths, 0)));
}

void write_table(const CodeLengths& lengths, std::byte* dst) {
  std::memset(dst, 0, table_bytes(lengths));
  unsigned present = 0;
  for (std::size_t symbol = 0; symbol < kSymbols; ++symbol) {
    if (lengths[symbol] == 0) continue;
    dst[symbol / 8] |= std::byte{1} << (symbol % 8);
    dst[kTableBitmapBytes + present / 2] |= std::byte(lengths[symbol] - 1) << (4 * (present % 2));
    ++present;
  }
}

std::optional<ParsedTable> parse_table(std::span<const std::byte> coded) {
  if (coded.size() < kTableBitmapBytes) return std::nullopt;
  ParsedTable table{};
  unsigned present = 0;
  const std::size_t room = coded.size() - kTableBitmapBytes;
  std::uint32_t sum = 0;
  for (std::size_t symbol = 0; symbol < kSymbols; ++symbol) {
    if ((coded[symbol / 8] >> (symbol % 8) & std::byte{1}) == std::byte{0}) continue;
    if (present / 2 >= room) return std::nullopt;
    const std::byte pair = coded[kTableBitmapBytes + present / 2];
    const unsigned length = std::to_integer<unsigned>(pair >> (4 * (present % 2)) & std::byte{15}) + 1;
    if (length > kMaxCodeBits) return std::nullopt;
    table.lengths[symbol] = static_cast<std::uint8_t>(length);
    sum += share(length);
    ++present;
  }
  table.bytes = table_bytes(present);
  if (sum != kWhole || table.bytes > coded.size()) return std::nullopt;
  return table;
}

void make_encode_table(const CodeLengths& lengths, EncodeTable& table) {
  auto codes = first_codes(lengths);
  for (std::size_t symbol = 0; symbol < kSymbols; ++symbol) {
    const std::uint32_t length = lengths[symbol];
    table.entries[symbol] = length == 0 ? 0 : codes[length]++ | length << kMaxCodeBits;
  }
}

void make_decode_table(const CodeLengths& lengths, DecodeTable& table) {
  auto codes = first_codes(lengths);
  for (std::uint32_t symbol = 0; symbol < kSymbols; ++symbol) {
    const std::uint32_t length = lengths[symbol];
    if (length == 0) continue;
    const std::uint32_t first = codes[length]++ << (kMaxCodeBits - length);
    std::fill_n(table.entries.begin() + first, share(length), length | symbol << kDecodeSymbolShift);
  }
}

}  // namespace geocomm::codec::huffman
