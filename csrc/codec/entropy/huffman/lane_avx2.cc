// The look-ups in tables go through general registers: on most machines that is faster than gather
// instructions.
#include <immintrin.h>

#include <bit>
#include <cstring>

#include "codec/entropy/huffman/lane_simd.h"
#include "codec/simd/vector_avx2.h"

namespace geocomm::codec::huffman {
namespace {

// For each set of eight lanes a byte shuffle of eight words: `expand` deals the first words to the lanes of
// the set, zero to the others; `compress` moves the words of the set, in order, to the end.
struct Shuffles {
  alignas(64) std::uint8_t expand[256][16];
  alignas(64) std::uint8_t compress[256][16];
};

constexpr Shuffles make_shuffles() {
  Shuffles shuffles{};
  for (unsigned set = 0; set < 256; ++set) {
    const auto size = static_cast<unsigned>(std::popcount(set));
    for (unsigned lane = 0; lane < 8; ++lane) {
      const unsigned from = kExpand.order[set][lane];
      for (unsigned byte = 0; byte < 2; ++byte) {
        const bool is_in = from != bitmap_tables::kZero;
        shuffles.expand[set][2 * lane + byte] =
            static_cast<std::uint8_t>(is_in ? 2 * from + byte : bitmap_tables::kZero);
        if (lane < size) {
          shuffles.compress[set][2 * (8 - size + lane) + byte] =
              static_cast<std::uint8_t>(2 * kCompact.order[set][lane] + byte);
        }
      }
    }
  }
  return shuffles;
}
constexpr Shuffles kShuffles = make_shuffles();

struct Lanes : Avx2 {
  // One substream after the other: side by side they are no faster, since what limits is the work, not
  // waiting.
  static constexpr std::size_t kStreams = 1;

  // The next words to the lanes whose bits are set, zero to the others. Moves `words` behind them.
  static Ints deal_words(unsigned set, const std::byte*& words) {
    const __m128i next = _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
    words += sizeof(std::uint16_t) * static_cast<unsigned>(_mm_popcnt_u32(set));
    return _mm256_cvtepu16_epi32(_mm_shuffle_epi8(next, load_shuffle(kShuffles.expand[set])));
  }
  // The other way: the low words of these lanes before `front`, which it returns moved.
  static std::byte* put_words(unsigned set, Ints lanes, std::byte* front) {
    const Ints low = lanes & _mm256_set1_epi32(0xFFFF);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(front - 16),
                     _mm_shuffle_epi8(words, load_shuffle(kShuffles.compress[set])));
    return front - sizeof(std::uint16_t) * static_cast<unsigned>(_mm_popcnt_u32(set));
  }

  static Ints look_up(const std::uint32_t* entries, Ints at) {
    return _mm256_set_m128i(look_up_four(entries, _mm256_extracti128_si256(at, 1)),
                            look_up_four(entries, _mm256_castsi256_si128(at)));
  }
  static void store_symbols(std::byte* to, const Ints (&entries)[4]) {
    const Ints low = _mm256_packus_epi32(entries[0], entries[1]);
    const Ints high = _mm256_packus_epi32(entries[2], entries[3]);
    const Ints mixed = _mm256_packus_epi16(_mm256_srli_epi16(low, kDecodeSymbolShift),
                                           _mm256_srli_epi16(high, kDecodeSymbolShift));
    store_ints(to, _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  }

  // The table four times, each moved by 16 bits more: four entries are put together by `or` alone.
  class Codes {
   public:
    static constexpr std::size_t kRows = 1;

    explicit Codes(const EncodeTable& table) {
      for (unsigned k = 0; k < 4; ++k) {
        for (std::size_t symbol = 0; symbol < kSymbols; ++symbol) {
          shifted_[k][symbol] = std::uint64_t{table.entries[symbol]} << (16 * k);
        }
      }
    }
    struct Rows {
      const Codes& codes;
      const std::byte* src;

      Ints entries(std::size_t group) const {
        std::uint64_t symbols;
        std::memcpy(&symbols, src + group * sizeof(symbols), sizeof(symbols));
        return _mm256_cvtepu16_epi32(_mm_set_epi64x(static_cast<std::int64_t>(codes.four(symbols >> 32)),
                                                    static_cast<std::int64_t>(codes.four(symbols))));
      }
    };
    Rows look_up(const std::byte* src) const { return {*this, src}; }

   private:
    std::uint64_t four(std::uint64_t symbols) const {
      return shifted_[0][symbols & 0xFF] | shifted_[1][symbols >> 8 & 0xFF] |
             shifted_[2][symbols >> 16 & 0xFF] | shifted_[3][symbols >> 24 & 0xFF];
    }

    std::uint64_t shifted_[4][kSymbols];
  };

 private:
  static __m128i load_shuffle(const std::uint8_t (&shuffle)[16]) {
    return _mm_load_si128(reinterpret_cast<const __m128i*>(shuffle));
  }
  static __m128i look_up_four(const std::uint32_t* entries, __m128i at) {
    const auto low = static_cast<std::uint64_t>(_mm_cvtsi128_si64(at));
    const auto high = static_cast<std::uint64_t>(_mm_extract_epi64(at, 1));
    __m128i found = _mm_cvtsi32_si128(static_cast<int>(entries[low & 0xFFFFFFFF]));
    found = _mm_insert_epi32(found, static_cast<int>(entries[low >> 32]), 1);
    found = _mm_insert_epi32(found, static_cast<int>(entries[high & 0xFFFFFFFF]), 2);
    return _mm_insert_epi32(found, static_cast<int>(entries[high >> 32]), 3);
  }
};

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

constexpr LaneKernels kLoops{encode<Lanes>, decode<Lanes>, count_common};

}  // namespace

constinit const LaneKernels LaneKernels::kAvx2 = kLoops;

}  // namespace geocomm::codec::huffman
