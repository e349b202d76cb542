// The encoder looks its table up in registers.
#include <immintrin.h>

#include "codec/entropy/huffman/lane_simd.h"
#include "codec/simd/vector_avx512.h"

namespace geocomm::codec::huffman {
namespace {

// One byte of each of 256 entries.
class ByteTable {
 public:
  ByteTable(const EncodeTable& table, unsigned shift) {
    for (std::size_t quarter = 0; quarter < 4; ++quarter) {
      alignas(64) std::uint8_t part[64];
      for (std::size_t k = 0; k < 64; k += 16) {
        const __m512i entries = _mm512_load_si512(table.entries.data() + quarter * 64 + k);
        const __m512i shifted = _mm512_srl_epi32(entries, _mm_cvtsi32_si128(static_cast<int>(shift)));
        _mm_store_si128(reinterpret_cast<__m128i*>(part + k), _mm512_cvtepi32_epi8(shifted));
      }
      quarters_[quarter] = _mm512_load_si512(part);
    }
  }
  __m512i look_up(__m512i symbols) const {
    const __m512i low = _mm512_permutex2var_epi8(quarters_[0], symbols, quarters_[1]);
    const __m512i high = _mm512_permutex2var_epi8(quarters_[2], symbols, quarters_[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(symbols), low, high);
  }

 private:
  __m512i quarters_[4];
};

struct Lanes : Avx512 {
  static constexpr std::size_t kStreams = kMaxSubstreams;

  // The next words to the lanes whose bits are set, zero to the others. Moves `words` behind them.
  static Ints deal_words(unsigned set, const std::byte*& words) {
    const Ints next = load_words(words);
    words += sizeof(std::uint16_t) * static_cast<unsigned>(_mm_popcnt_u32(set));
    return _mm512_maskz_expand_epi32(_cvtu32_mask16(set), next);
  }
  // The other way: the low words of these lanes before `front`, which it returns moved. What lies behind the
  // words is in use.
  static std::byte* put_words(unsigned set, Ints lanes, std::byte* front) {
    const auto size = static_cast<unsigned>(_mm_popcnt_u32(set));
    front -= sizeof(std::uint16_t) * size;
    _mm256_mask_storeu_epi16(front, _cvtu32_mask16((1U << size) - 1),
                             _mm256_maskz_compress_epi16(_cvtu32_mask16(set), _mm512_cvtepi32_epi16(lanes)));
    return front;
  }

  static Ints look_up(const std::uint32_t* entries, Ints at) {
    return _mm512_i32gather_epi32(at, entries, 4);
  }
  static void store_symbols(std::byte* to, const Ints (&entries)[2]) {
    store_bytes(to, shift_right<kDecodeSymbolShift>(entries[0]));
    store_bytes(to + 16, shift_right<kDecodeSymbolShift>(entries[1]));
  }

  // Rows go in pairs: as many symbols as the table in registers looks up at once.
  class Codes {
   public:
    static constexpr std::size_t kRows = 2;

    explicit Codes(const EncodeTable& table) : low_bytes_(table, 0), high_bytes_(table, 8) {}
    struct Rows {
      Ints words[kRows];

      Ints entries(std::size_t group) const {
        const Ints row = words[group / 2];
        return _mm512_cvtepu16_epi32(group % 2 == 0 ? _mm512_castsi512_si256(row)
                                                    : _mm512_extracti64x4_epi64(row, 1));
      }
    };
    Rows look_up(const std::byte* src) const {
      const Ints symbols = load_ints(src);
      const Ints low = low_bytes_.look_up(symbols);
      const Ints high = high_bytes_.look_up(symbols);
      return {{join(_mm512_castsi512_si256(low), _mm512_castsi512_si256(high)),
               join(_mm512_extracti64x4_epi64(low, 1), _mm512_extracti64x4_epi64(high, 1))}};
    }

   private:
    static Ints join(__m256i low, __m256i high) {
      return _mm512_cvtepu8_epi16(low) | _mm512_slli_epi16(_mm512_cvtepu8_epi16(high), 8);
    }

    ByteTable low_bytes_;
    ByteTable high_bytes_;
  };
};

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

constexpr LaneKernels kLoops{encode<Lanes>, decode<Lanes>, count_common};

}  // namespace

constinit const LaneKernels LaneKernels::kAvx512 = kLoops;

}  // namespace geocomm::codec::huffman
