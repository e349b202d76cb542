// A row as two groups of sixteen lanes, 32 bits each. The encoder looks its table up in registers.
#include <immintrin.h>

#include <algorithm>

#include "codec/entropy/huffman/lane_kernels.h"

namespace geocomm::codec::huffman {
namespace {

constexpr std::size_t kGroupLanes = 16;
constexpr std::size_t kGroups = kLanes / kGroupLanes;

__m512i load_group(const LaneWords& lanes, std::size_t group) {
  return _mm512_load_si512(lanes.data() + group * kGroupLanes);
}
void store_group(LaneWords& lanes, std::size_t group, __m512i value) {
  _mm512_store_si512(lanes.data() + group * kGroupLanes, value);
}
unsigned size_of(__mmask16 set) {
  return static_cast<unsigned>(_mm_popcnt_u32(_cvtmask16_u32(set)));
}

// Sixteen lanes of a reader.
struct ReaderGroup {
  __m512i bits;
  __m512i lack;  // 16 - count: the lanes where it is above 0 take a word, and shift it by as much
};

// Takes words, then a code of each lane. Returns the symbols. Reads 32 bytes of words.
__m128i decode_step(const DecodeTable& table, ReaderGroup& group, const std::byte*& words) {
  const __mmask16 takes = _mm512_cmpgt_epi32_mask(group.lack, _mm512_setzero_si512());
  const __m512i next = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)));
  words += sizeof(std::uint16_t) * size_of(takes);
  const __m512i dealt = _mm512_maskz_expand_epi32(takes, next);
  const __m512i bits = _mm512_or_si512(group.bits, _mm512_sllv_epi32(dealt, group.lack));
  const __m512i at = _mm512_srli_epi32(bits, 32 - kMaxCodeBits);
  const __m512i entries = _mm512_i32gather_epi32(at, table.entries.data(), 4);
  const __m512i lengths = _mm512_and_si512(entries, _mm512_set1_epi32((1 << kDecodeSymbolShift) - 1));
  const __m512i lack = _mm512_mask_sub_epi32(group.lack, takes, group.lack, _mm512_set1_epi32(kWordBits));
  group.bits = _mm512_sllv_epi32(bits, lengths);
  group.lack = _mm512_add_epi32(lack, lengths);
  return _mm512_cvtepi32_epi8(_mm512_srli_epi32(entries, kDecodeSymbolShift));
}

// Whole rows of kStreams substreams side by side, as long as each has words for all lanes of a row.
template <std::size_t kStreams>
void decode_rows(const DecodeTable& table, LaneReader* readers) {
  ReaderGroup groups[kStreams][kGroups];
  const std::byte* words[kStreams];
  std::byte* dst[kStreams];
  const __m512i sixteen = _mm512_set1_epi32(kWordBits);
  std::size_t left = readers[0].symbols / kLanes;
  // All loops over groups are unrolled: the compiler then keeps them in registers only.
#pragma GCC unroll 4
  for (std::size_t s = 0; s < kStreams; ++s) {
#pragma GCC unroll 2
    for (std::size_t g = 0; g < kGroups; ++g) {
      groups[s][g] = {load_group(readers[s].bits, g),
                      _mm512_sub_epi32(sixteen, load_group(readers[s].counts, g))};
    }
    words[s] = readers[s].words;
    dst[s] = readers[s].dst;
    left = std::min(left, readers[s].symbols / kLanes);
  }
  const std::size_t all = left;
  for (;;) {
    std::size_t rows = left;
    for (std::size_t s = 0; s < kStreams; ++s) {
      rows = std::min(rows, static_cast<std::size_t>(readers[s].end - words[s]) / (2 * kLanes));
    }
    if (rows == 0) break;
    left -= rows;
    for (; rows != 0; --rows) {
#pragma GCC unroll 2
      for (std::size_t g = 0; g < kGroups; ++g) {
#pragma GCC unroll 4
        for (std::size_t s = 0; s < kStreams; ++s) {
          const __m128i symbols = decode_step(table, groups[s][g], words[s]);
          _mm_storeu_si128(reinterpret_cast<__m128i*>(dst[s] + g * kGroupLanes), symbols);
        }
      }
      for (std::size_t s = 0; s < kStreams; ++s) dst[s] += kLanes;
    }
  }
#pragma GCC unroll 4
  for (std::size_t s = 0; s < kStreams; ++s) {
#pragma GCC unroll 2
    for (std::size_t g = 0; g < kGroups; ++g) {
      store_group(readers[s].bits, g, groups[s][g].bits);
      store_group(readers[s].counts, g, _mm512_sub_epi32(sixteen, groups[s][g].lack));
    }
    readers[s].words = words[s];
    readers[s].dst = dst[s];
    readers[s].symbols -= (all - left) * kLanes;
  }
}

bool decode(const DecodeTable& table, LaneReader* readers, std::size_t count) {
  if (count == kMaxSubstreams) decode_rows<kMaxSubstreams>(table, readers);
  for (std::size_t s = 0; s < count; ++s) {
    decode_rows<1>(table, readers + s);
    if (!decode_rest_scalar(table, readers[s])) return false;
  }
  return true;
}

// Sixteen lanes of a writer.
struct WriterGroup {
  __m512i bits;
  __m512i counts;
};

// One byte of each of 256 entries.
struct ByteTable {
  __m512i quarters[4];
};

ByteTable byte_of(const EncodeTable& table, unsigned shift) {
  ByteTable bytes;
  for (std::size_t quarter = 0; quarter < 4; ++quarter) {
    alignas(64) std::uint8_t part[64];
    for (std::size_t k = 0; k < 64; k += kGroupLanes) {
      const __m512i entries = _mm512_load_si512(table.entries.data() + quarter * 64 + k);
      const __m512i shifted = _mm512_srl_epi32(entries, _mm_cvtsi32_si128(static_cast<int>(shift)));
      _mm_store_si128(reinterpret_cast<__m128i*>(part + k), _mm512_cvtepi32_epi8(shifted));
    }
    bytes.quarters[quarter] = _mm512_load_si512(part);
  }
  return bytes;
}

__m512i look_up(const ByteTable& table, __m512i symbols) {
  const __m512i low = _mm512_permutex2var_epi8(table.quarters[0], symbols, table.quarters[1]);
  const __m512i high = _mm512_permutex2var_epi8(table.quarters[2], symbols, table.quarters[3]);
  return _mm512_mask_blend_epi8(_mm512_movepi8_mask(symbols), low, high);
}

// Takes on a code of each lane and writes words before `front`, which it returns moved.
std::byte* encode_step(__m512i entries, WriterGroup& group, std::byte* front) {
  const __m512i lengths = _mm512_srli_epi32(entries, kMaxCodeBits);
  const __m512i codes = _mm512_and_si512(entries, _mm512_set1_epi32((1 << kMaxCodeBits) - 1));
  const __m512i sums = _mm512_add_epi32(group.counts, lengths);
  const __mmask16 takes = _mm512_cmpgt_epi32_mask(sums, _mm512_set1_epi32(31));
  const unsigned size = size_of(takes);
  const __m256i words = _mm512_cvtepi32_epi16(group.bits);
  front -= sizeof(std::uint16_t) * size;
  // What lies behind the words is in use.
  _mm256_mask_storeu_epi16(front, _cvtu32_mask16((1U << size) - 1),
                           _mm256_maskz_compress_epi16(takes, words));
  group.counts = _mm512_mask_sub_epi32(sums, takes, sums, _mm512_set1_epi32(kWordBits));
  const __m512i bits = _mm512_mask_srli_epi32(group.bits, takes, group.bits, kWordBits);
  group.bits = _mm512_or_si512(bits, _mm512_sllv_epi32(codes, _mm512_sub_epi32(group.counts, lengths)));
  return front;
}

// A row of entries of 16 bits.
std::byte* encode_row(__m512i entries, WriterGroup (&groups)[kGroups], std::byte* front) {
  front = encode_step(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(entries, 1)), groups[1], front);
  return encode_step(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(entries)), groups[0], front);
}

// Rows go in pairs: as many symbols as the table in registers looks up at once.
void encode(const EncodeTable& table, LaneWriter& writer) {
  if (const std::size_t rest = writer.symbols % kLanes; rest != 0) encode_row_scalar(table, writer, rest);
  if (writer.symbols % (2 * kLanes) != 0) encode_row_scalar(table, writer, kLanes);
  const ByteTable low_bytes = byte_of(table, 0);
  const ByteTable high_bytes = byte_of(table, 8);
  WriterGroup groups[kGroups];
  for (std::size_t g = 0; g < kGroups; ++g) {
    groups[g] = {load_group(writer.bits, g), load_group(writer.counts, g)};
  }
  std::byte* front = writer.front;
  for (std::size_t left = writer.symbols; left != 0; left -= 2 * kLanes) {
    const __m512i symbols = _mm512_loadu_si512(writer.src + left - 2 * kLanes);
    const __m512i low = look_up(low_bytes, symbols);
    const __m512i high = look_up(high_bytes, symbols);
    // Entries of 16 bits: of the pair's second row, then of its first.
    const __m512i second =
        _mm512_or_si512(_mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(low, 1)),
                        _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(high, 1)), 8));
    const __m512i first =
        _mm512_or_si512(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(low)),
                        _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(high)), 8));
    front = encode_row(second, groups, front);
    front = encode_row(first, groups, front);
  }
  writer.symbols = 0;
  writer.front = front;
  for (std::size_t g = 0; g < kGroups; ++g) {
    store_group(writer.bits, g, groups[g].bits);
    store_group(writer.counts, g, groups[g].counts);
  }
}

std::size_t count_common(std::span<const std::byte> src, const CommonSymbols& common, CommonCounts& counts,
                         std::byte* rest) {
  __m512i symbols[kCommonSymbols];
  std::uint64_t found[kCommonSymbols] = {};
  for (std::size_t k = 0; k < kCommonSymbols; ++k)
    symbols[k] = _mm512_set1_epi8(static_cast<char>(common[k]));
  std::byte* end = rest;
  for (std::size_t i = 0; i < src.size(); i += 64) {
    const std::uint64_t there =
        src.size() - i < 64 ? (std::uint64_t{1} << (src.size() - i)) - 1 : ~std::uint64_t{0};
    const __m512i bytes = _mm512_maskz_loadu_epi8(_cvtu64_mask64(there), src.data() + i);
    std::uint64_t others = there;
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kCommonSymbols; ++k) {
      const std::uint64_t same = _cvtmask64_u64(_mm512_cmpeq_epi8_mask(bytes, symbols[k])) & there;
      found[k] += static_cast<std::uint64_t>(_mm_popcnt_u64(same));
      others &= ~same;
    }
    // The form that keeps bytes: Bochs gets the one that zeroes them wrong for 64 bits.
    _mm512_storeu_si512(end, _mm512_mask_compress_epi8(bytes, _cvtu64_mask64(others), bytes));
    end += _mm_popcnt_u64(others);
  }
  for (std::size_t k = 0; k < kCommonSymbols; ++k) counts[k] += static_cast<std::uint32_t>(found[k]);
  return static_cast<std::size_t>(end - rest);
}

constexpr LaneKernels kLoops{encode, decode, count_common};

}  // namespace

constinit const LaneKernels LaneKernels::kAvx512 = kLoops;

}  // namespace geocomm::codec::huffman
