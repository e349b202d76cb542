#include "codec/quantizers/lossless/lossless_kernels.h"

#if defined(__AVX2__)

#include <immintrin.h>

#include <cstdint>

#include "codec/simd/bitmap_tables.h"

namespace geocomm::codec {
namespace {

__m256i load(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
void store(std::byte* to, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}
__m128i load8(const std::byte* from) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
}
void store8(std::byte* to, __m128i value) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), value);
}
std::uint32_t load_bits(const std::byte* bitmap, std::size_t index) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, bitmap + index / 8, sizeof(bits));
  return bits;
}

__m256i rotate_left(__m256i words) {
  return _mm256_or_si256(_mm256_slli_epi16(words, 1), _mm256_srli_epi16(words, 15));
}
__m256i rotate_right(__m256i words) {
  return _mm256_or_si256(_mm256_srli_epi16(words, 1), _mm256_slli_epi16(words, 15));
}

// Packing works in halves of 128 bits: 64-bit quarters come out as 0, 2, 1, 3.
__m256i in_order(__m256i packed) {
  return _mm256_permute4x64_epi64(packed, 0xD8);
}
__m256i high_bytes(__m256i words0, __m256i words1) {
  return in_order(_mm256_packus_epi16(_mm256_srli_epi16(words0, 8), _mm256_srli_epi16(words1, 8)));
}
__m256i low_bytes(__m256i words0, __m256i words1) {
  const __m256i mask = _mm256_set1_epi16(0xFF);
  return in_order(_mm256_packus_epi16(_mm256_and_si256(words0, mask), _mm256_and_si256(words1, mask)));
}
// Sixteen words of 16 bits.
__m256i words_of(__m128i high, __m128i low) {
  return _mm256_or_si256(_mm256_slli_epi16(_mm256_cvtepu8_epi16(high), 8), _mm256_cvtepu8_epi16(low));
}
__m256i words_at(const std::byte* high, const std::byte* low) {
  return words_of(_mm_loadu_si128(reinterpret_cast<const __m128i*>(high)),
                  _mm_loadu_si128(reinterpret_cast<const __m128i*>(low)));
}

void split16(const std::byte* src, std::size_t count, std::byte* high, std::byte* low) {
  for (std::size_t i = 0; i < count; i += 32) {
    const __m256i words0 = rotate_left(load(src + 2 * i));
    const __m256i words1 = rotate_left(load(src + 2 * i + 32));
    store(high + i, high_bytes(words0, words1));
    store(low + i, low_bytes(words0, words1));
  }
}

void merge16(const std::byte* high, const std::byte* low, std::size_t count, std::byte* dst) {
  for (std::size_t i = 0; i < count; i += 16) store(dst + 2 * i, rotate_right(words_at(high + i, low + i)));
}

// The upper or lower halves of sixteen words of 32 bits.
__m256i upper_halves(__m256i words0, __m256i words1) {
  return in_order(_mm256_packus_epi32(_mm256_srli_epi32(words0, 16), _mm256_srli_epi32(words1, 16)));
}
__m256i lower_halves(__m256i words0, __m256i words1) {
  const __m256i mask = _mm256_set1_epi32(0xFFFF);
  return in_order(_mm256_packus_epi32(_mm256_and_si256(words0, mask), _mm256_and_si256(words1, mask)));
}

std::size_t split32(const std::byte* src, std::size_t count, std::byte* high, std::byte* low,
                    std::byte* bitmap) {
  const __m256i zero = _mm256_setzero_si256();
  std::size_t set = 0;
  for (std::size_t i = 0; i < count; i += 32) {
    const __m256i words[4] = {load(src + 4 * i), load(src + 4 * i + 32), load(src + 4 * i + 64),
                              load(src + 4 * i + 96)};
    const __m256i upper0 = rotate_left(upper_halves(words[0], words[1]));
    const __m256i upper1 = rotate_left(upper_halves(words[2], words[3]));
    store(high + i, high_bytes(upper0, upper1));
    store(low + i, low_bytes(upper0, upper1));
    const __m256i zeros =
        in_order(_mm256_packs_epi16(_mm256_cmpeq_epi16(lower_halves(words[0], words[1]), zero),
                                    _mm256_cmpeq_epi16(lower_halves(words[2], words[3]), zero)));
    const std::uint32_t bits = ~static_cast<std::uint32_t>(_mm256_movemask_epi8(zeros));
    __builtin_memcpy(bitmap + i / 8, &bits, sizeof(bits));
    set += static_cast<std::size_t>(_mm_popcnt_u32(bits));
  }
  return set;
}

std::size_t split_all_lower(const std::byte* src, std::size_t count, std::byte* high, std::byte* low) {
  for (std::size_t i = 0; i < count; i += 32) {
    const __m256i words0 = lower_halves(load(src + 4 * i), load(src + 4 * i + 32));
    const __m256i words1 = lower_halves(load(src + 4 * i + 64), load(src + 4 * i + 96));
    store(high + i, high_bytes(words0, words1));
    store(low + i, low_bytes(words0, words1));
  }
  return count;
}

std::size_t split_lower(const std::byte* src, const std::byte* bitmap, std::size_t count, std::byte* high,
                        std::byte* low) {
  if (bitmap == nullptr) return split_all_lower(src, count, high, low);
  // Bytes 1 and 0 of the words in each half, four of either.
  const __m256i gather = _mm256_setr_epi8(1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                          1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1);
  std::size_t taken = 0;
  for (std::size_t i = 0; i < count; i += 32) {
    std::uint32_t bits = load_bits(bitmap, i);
    for (std::size_t at = i; bits != 0; at += 8, bits >>= 8) {
      const __m256i bytes = _mm256_shuffle_epi8(load(src + 4 * at), gather);
      // Eight high bytes, eight low bytes.
      const __m128i planes =
          _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
      const __m128i order = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kCompact.order[bits & 0xFF]));
      store8(high + taken, _mm_shuffle_epi8(planes, order));
      store8(low + taken, _mm_shuffle_epi8(_mm_unpackhi_epi64(planes, planes), order));
      taken += static_cast<std::size_t>(_mm_popcnt_u32(bits & 0xFF));
    }
  }
  return taken;
}

// Sixteen words: `upper` rotated back, above `lower`.
void store32(std::byte* dst, __m256i upper, __m256i lower) {
  const __m256i words = rotate_right(upper);
  const __m256i even = _mm256_unpacklo_epi16(lower, words);  // 0-3 and 8-11
  const __m256i odd = _mm256_unpackhi_epi16(lower, words);   // 4-7 and 12-15
  store(dst, _mm256_permute2x128_si256(even, odd, 0x20));
  store(dst + 32, _mm256_permute2x128_si256(even, odd, 0x31));
}

// Eight bytes of a plane spread out to where bits are set.
__m128i expand8(const std::byte* from, std::uint32_t bits) {
  const __m128i order = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kExpand.order[bits]));
  return _mm_shuffle_epi8(load8(from), order);
}

std::size_t merge_sparse(const std::byte* high, const std::byte* low, const LowerHalves& lower,
                         std::size_t count, std::byte* dst) {
  std::size_t taken = 0;
  for (std::size_t i = 0; i < count; i += 32) {
    std::uint32_t bits = load_bits(lower.bitmap, i);
    for (std::size_t at = i; at < i + 32; at += 16, bits >>= 16) {
      __m256i halves = _mm256_setzero_si256();
      if ((bits & 0xFFFF) != 0) {
        const std::size_t next = taken + static_cast<std::size_t>(_mm_popcnt_u32(bits & 0xFF));
        const std::uint32_t first = bits & 0xFF;
        const std::uint32_t second = bits >> 8 & 0xFF;
        halves = words_of(
            _mm_unpacklo_epi64(expand8(lower.high + taken, first), expand8(lower.high + next, second)),
            _mm_unpacklo_epi64(expand8(lower.low + taken, first), expand8(lower.low + next, second)));
        taken = next + static_cast<std::size_t>(_mm_popcnt_u32(second));
      }
      store32(dst + 4 * at, words_at(high + at, low + at), halves);
    }
  }
  return taken;
}

std::size_t merge32(const std::byte* high, const std::byte* low, const LowerHalves& lower, std::size_t count,
                    std::byte* dst) {
  if (lower.bitmap != nullptr) return merge_sparse(high, low, lower, count, dst);
  if (lower.high == nullptr) {
    for (std::size_t i = 0; i < count; i += 16) {
      store32(dst + 4 * i, words_at(high + i, low + i), _mm256_setzero_si256());
    }
    return 0;
  }
  for (std::size_t i = 0; i < count; i += 16) {
    store32(dst + 4 * i, words_at(high + i, low + i), words_at(lower.high + i, lower.low + i));
  }
  return count;
}

constexpr LosslessKernels kAvx2{split16, merge16, split32, split_lower, merge32};

}  // namespace

const LosslessKernels* lossless_kernels_avx2() {
  return &kAvx2;
}

}  // namespace geocomm::codec

#else

namespace geocomm::codec {
const LosslessKernels* lossless_kernels_avx2() {
  return nullptr;
}
}  // namespace geocomm::codec

#endif
