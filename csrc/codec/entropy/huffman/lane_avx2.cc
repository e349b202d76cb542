// A row as four groups of eight lanes, 32 bits each. The look-ups in tables go through general registers: on
// most machines that is faster than gather instructions.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "codec/entropy/huffman/lane_kernels.h"

namespace geocomm::codec::huffman {
namespace {

constexpr std::size_t kGroupLanes = 8;
constexpr std::size_t kGroups = kLanes / kGroupLanes;

// For each set of eight lanes a byte shuffle of eight words: `expand` deals the first words to the lanes of
// the set, zero to the others; `compress` moves the words of the set, in order, to the end.
struct Shuffles {
  alignas(64) std::uint8_t expand[256][16];
  alignas(64) std::uint8_t compress[256][16];
};

constexpr Shuffles make_shuffles() {
  Shuffles shuffles{};
  for (unsigned set = 0; set < 256; ++set) {
    unsigned size = 0;
    for (unsigned lane = 0; lane < 8; ++lane) size += set >> lane & 1;
    unsigned rank = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      const bool is_in = (set >> lane & 1) != 0;
      for (unsigned byte = 0; byte < 2; ++byte) {
        shuffles.expand[set][2 * lane + byte] = static_cast<std::uint8_t>(is_in ? 2 * rank + byte : 0x80);
        if (is_in) {
          shuffles.compress[set][2 * (8 - size + rank) + byte] = static_cast<std::uint8_t>(2 * lane + byte);
        }
      }
      rank += is_in;
    }
  }
  return shuffles;
}
constexpr Shuffles kShuffles = make_shuffles();

__m128i load_shuffle(const std::uint8_t (&shuffle)[16]) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(shuffle));
}
__m256i load_group(const LaneWords& lanes, std::size_t group) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(lanes.data() + group * kGroupLanes));
}
void store_group(LaneWords& lanes, std::size_t group, __m256i value) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes.data() + group * kGroupLanes), value);
}
unsigned set_of(__m256i lanes) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes)));
}
std::size_t word_bytes(unsigned set) {
  return sizeof(std::uint16_t) * static_cast<unsigned>(_mm_popcnt_u32(set));
}

// Eight lanes of a reader.
struct ReaderGroup {
  __m256i bits;
  __m256i lack;  // 16 - count: the lanes where it is above 0 take a word, and shift it by as much
};

__m128i look_up(const DecodeTable& table, __m128i at) {
  const auto low = static_cast<std::uint64_t>(_mm_cvtsi128_si64(at));
  const auto high = static_cast<std::uint64_t>(_mm_extract_epi64(at, 1));
  const std::uint32_t* entries = table.entries.data();
  __m128i found = _mm_cvtsi32_si128(static_cast<int>(entries[low & 0xFFFFFFFF]));
  found = _mm_insert_epi32(found, static_cast<int>(entries[low >> 32]), 1);
  found = _mm_insert_epi32(found, static_cast<int>(entries[high & 0xFFFFFFFF]), 2);
  return _mm_insert_epi32(found, static_cast<int>(entries[high >> 32]), 3);
}

// Takes words, then a code of each lane. Returns the table's entries.
__m256i decode_step(const DecodeTable& table, ReaderGroup& group, const std::byte*& words) {
  const __m256i takes = _mm256_cmpgt_epi32(group.lack, _mm256_setzero_si256());
  const unsigned set = set_of(takes);
  const __m128i next = _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
  const __m256i dealt = _mm256_cvtepu16_epi32(_mm_shuffle_epi8(next, load_shuffle(kShuffles.expand[set])));
  words += word_bytes(set);
  const __m256i bits = _mm256_or_si256(group.bits, _mm256_sllv_epi32(dealt, group.lack));
  const __m256i at = _mm256_srli_epi32(bits, 32 - kMaxCodeBits);
  const __m256i entries = _mm256_set_m128i(look_up(table, _mm256_extracti128_si256(at, 1)),
                                           look_up(table, _mm256_castsi256_si128(at)));
  const __m256i lengths = _mm256_and_si256(entries, _mm256_set1_epi32((1 << kDecodeSymbolShift) - 1));
  const __m256i taken = _mm256_and_si256(takes, _mm256_set1_epi32(kWordBits));
  group.bits = _mm256_sllv_epi32(bits, lengths);
  group.lack = _mm256_add_epi32(_mm256_sub_epi32(group.lack, taken), lengths);
  return entries;
}

void store_symbols(std::byte* dst, const __m256i (&entries)[kGroups]) {
  const __m256i low = _mm256_packus_epi32(entries[0], entries[1]);
  const __m256i high = _mm256_packus_epi32(entries[2], entries[3]);
  const __m256i mixed = _mm256_packus_epi16(_mm256_srli_epi16(low, kDecodeSymbolShift),
                                            _mm256_srli_epi16(high, kDecodeSymbolShift));
  const __m256i symbols = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), symbols);
}

// Whole rows, as long as there are words for all lanes of a row.
void decode_rows(const DecodeTable& table, LaneReader& reader) {
  const __m256i sixteen = _mm256_set1_epi32(kWordBits);
  // All loops over groups are unrolled: the compiler then keeps them in registers only.
  ReaderGroup groups[kGroups];
#pragma GCC unroll 4
  for (std::size_t g = 0; g < kGroups; ++g) {
    groups[g] = {load_group(reader.bits, g), _mm256_sub_epi32(sixteen, load_group(reader.counts, g))};
  }
  const std::byte* words = reader.words;
  std::byte* dst = reader.dst;
  std::size_t left = reader.symbols / kLanes;
  for (;;) {
    std::size_t rows = std::min(left, static_cast<std::size_t>(reader.end - words) / (2 * kLanes));
    if (rows == 0) break;
    left -= rows;
    for (; rows != 0; --rows) {
      __m256i entries[kGroups];
#pragma GCC unroll 4
      for (std::size_t g = 0; g < kGroups; ++g) entries[g] = decode_step(table, groups[g], words);
      store_symbols(dst, entries);
      dst += kLanes;
    }
  }
#pragma GCC unroll 4
  for (std::size_t g = 0; g < kGroups; ++g) {
    store_group(reader.bits, g, groups[g].bits);
    store_group(reader.counts, g, _mm256_sub_epi32(sixteen, groups[g].lack));
  }
  reader.symbols -= static_cast<std::size_t>(dst - reader.dst);
  reader.words = words;
  reader.dst = dst;
}

// One substream after the other: side by side they are no faster, since what limits is the work, not waiting.
bool decode(const DecodeTable& table, LaneReader* readers, std::size_t count) {
  for (std::size_t s = 0; s < count; ++s) {
    decode_rows(table, readers[s]);
    if (!decode_rest_scalar(table, readers[s])) return false;
  }
  return true;
}

// Eight lanes of a writer.
struct WriterGroup {
  __m256i bits;
  __m256i counts;
};

// The table four times, each moved by 16 bits more: four entries are put together by `or` alone.
struct ShiftedTable {
  std::uint64_t entries[4][kSymbols];
};

ShiftedTable shift(const EncodeTable& table) {
  ShiftedTable shifted;
  for (unsigned k = 0; k < 4; ++k) {
    for (std::size_t symbol = 0; symbol < kSymbols; ++symbol) {
      shifted.entries[k][symbol] = std::uint64_t{table.entries[symbol]} << (16 * k);
    }
  }
  return shifted;
}

std::uint64_t look_up(const ShiftedTable& table, std::uint64_t four_symbols) {
  return table.entries[0][four_symbols & 0xFF] | table.entries[1][four_symbols >> 8 & 0xFF] |
         table.entries[2][four_symbols >> 16 & 0xFF] | table.entries[3][four_symbols >> 24 & 0xFF];
}

// Takes on the symbols at `src` and writes words before `front`, which it returns moved.
std::byte* encode_step(const ShiftedTable& table, WriterGroup& group, const std::byte* src,
                       std::byte* front) {
  std::uint64_t symbols;
  std::memcpy(&symbols, src, sizeof(symbols));
  const __m128i packed = _mm_set_epi64x(static_cast<std::int64_t>(look_up(table, symbols >> 32)),
                                        static_cast<std::int64_t>(look_up(table, symbols)));
  const __m256i entries = _mm256_cvtepu16_epi32(packed);
  const __m256i sums = _mm256_add_epi32(group.counts, _mm256_srli_epi32(entries, kMaxCodeBits));
  const __m256i takes = _mm256_cmpgt_epi32(sums, _mm256_set1_epi32(31));
  const unsigned set = set_of(takes);
  const __m256i low = _mm256_and_si256(group.bits, _mm256_set1_epi32(0xFFFF));
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(front - 16),
                   _mm_shuffle_epi8(words, load_shuffle(kShuffles.compress[set])));
  const __m256i taken = _mm256_and_si256(takes, _mm256_set1_epi32(kWordBits));
  const __m256i kept = _mm256_sub_epi32(group.counts, taken);
  const __m256i codes = _mm256_and_si256(entries, _mm256_set1_epi32((1 << kMaxCodeBits) - 1));
  group.bits = _mm256_or_si256(_mm256_srlv_epi32(group.bits, taken), _mm256_sllv_epi32(codes, kept));
  group.counts = _mm256_sub_epi32(sums, taken);
  return front - word_bytes(set);
}

void encode(const EncodeTable& table, LaneWriter& writer) {
  if (const std::size_t rest = writer.symbols % kLanes; rest != 0) encode_row_scalar(table, writer, rest);
  const ShiftedTable shifted = shift(table);
  WriterGroup groups[kGroups];
#pragma GCC unroll 4
  for (std::size_t g = 0; g < kGroups; ++g) {
    groups[g] = {load_group(writer.bits, g), load_group(writer.counts, g)};
  }
  std::byte* front = writer.front;
  for (std::size_t left = writer.symbols; left != 0; left -= kLanes) {
    const std::byte* row = writer.src + left - kLanes;
#pragma GCC unroll 4
    for (std::size_t g = kGroups; g-- > 0;) {
      front = encode_step(shifted, groups[g], row + g * kGroupLanes, front);
    }
  }
  writer.symbols = 0;
  writer.front = front;
#pragma GCC unroll 4
  for (std::size_t g = 0; g < kGroups; ++g) {
    store_group(writer.bits, g, groups[g].bits);
    store_group(writer.counts, g, groups[g].counts);
  }
}

std::size_t count_common(std::span<const std::byte> src, const CommonSymbols& common, CommonCounts& counts,
                         std::byte* rest) {
  constexpr std::size_t kStep = 32;
  static_assert(kCountedAtOnce / kStep < 256);  // bytes hold the counts
  __m256i found[kCommonSymbols] = {};
  std::byte* end = rest;
  std::size_t i = 0;
  for (; i + kStep <= src.size(); i += kStep) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src.data() + i));
    __m256i is_common = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kCommonSymbols; ++k) {
      const __m256i same = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(static_cast<char>(common[k])));
      found[k] = _mm256_sub_epi8(found[k], same);
      is_common = _mm256_or_si256(is_common, same);
    }
    // At most two are usual, and are written without a branch.
    auto others = ~static_cast<std::uint32_t>(_mm256_movemask_epi8(is_common));
    std::byte* to = end;
    end += _mm_popcnt_u32(others);
    do {
      for (int unrolled = 0; unrolled < 2; ++unrolled, others = _blsr_u32(others)) {
        *to++ = src[i + _tzcnt_u32(others) % kStep];
      }
    } while (others != 0);
  }
  for (; i < src.size(); ++i) *end++ = src[i];
  for (std::size_t k = 0; k < kCommonSymbols; ++k) {
    const __m256i sums = _mm256_sad_epu8(found[k], _mm256_setzero_si256());
    const __m128i half = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    counts[k] += static_cast<std::uint32_t>(_mm_cvtsi128_si32(half) + _mm_extract_epi32(half, 2));
  }
  return static_cast<std::size_t>(end - rest);
}

constexpr LaneKernels kLoops{encode, decode, count_common};

}  // namespace

constinit const LaneKernels LaneKernels::kAvx2 = kLoops;

}  // namespace geocomm::codec::huffman
