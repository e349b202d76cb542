// The loops of LocoKernels on vectors V (vector_avx2.h, vector_avx512.h). All is local to the file that
// includes it. Counts are multiples of kLocoStep.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "codec/frames/vector_elements.h"
#include "codec/quantizers/loco/loco_kernels.h"
#include "codec/simd/partial_sums.h"

namespace geocomm::codec {
namespace {

// The two bits of a lane's code lie side by side, the first lane's lowest.
template <typename V>
LocoParts quantize(const float* values, std::size_t count, const LocoRule& rule, std::byte* codes) {
  alignas(64) float low[kLocoMaxK];
  alignas(64) float high[kLocoMaxK];
  const auto down = V::set(rule.down);
  const auto sum = V::set(rule.sum);
  const auto squares = V::set(rule.squares);
  LocoParts parts;
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    const auto value = V::load(values + i);
    const auto scaled = V::floats(magnitude_bits<V>(value)) * down;
    const auto is_high = V::greater_equal(scaled * sum, squares);
    const auto highs = V::where(is_high, V::bits(scaled));
    V::store(high + i, V::floats(highs));
    V::store(low + i, V::floats(V::bits(scaled) ^ highs));
    const std::uint32_t large = V::bits_of(is_high);
    parts.high_count += static_cast<std::size_t>(_mm_popcnt_u32(large));
    const std::uint32_t packed = _pdep_u32(large, 0x55555555) | _pdep_u32(V::signs(value), 0xAAAAAAAA);
    __builtin_memcpy(codes + i / 4, &packed, V::kLanes / 4);
  }
  parts.low = sum_vectors<V>(count, [&](std::size_t i) { return V::load(low + i); });
  parts.high = sum_vectors<V>(count, [&](std::size_t i) { return V::load(high + i); });
  return parts;
}

template <typename V>
typename V::Floats table_of(const LocoLevels& levels) {
  const float low = __builtin_bit_cast(float, std::uint32_t{levels.low} << 16);
  const float high = __builtin_bit_cast(float, std::uint32_t{levels.high} << 16);
  return V::set_table(low, high, -low, -high);
}

template <typename V>
void subtract(const float* values, const std::byte* codes, std::size_t count, const LocoLevels& levels,
              float* lost) {
  const auto table = table_of<V>(levels);
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    const auto decoded = V::look_up(table, V::load_pairs(codes + i / 4));
    V::store(lost + i, V::load(values + i) - decoded);
  }
}

template <typename V>
void decode(const std::byte* codes, std::size_t count, const LocoLevels& levels, float* values) {
  const auto table = table_of<V>(levels);
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    V::store(values + i, V::look_up(table, V::load_pairs(codes + i / 4)));
  }
}

// The low parts of eight places are as many bytes as a part has bits: 6 at most, since there are 64 places in
// 4096 or less. Those of all fill whole words.
inline constexpr std::size_t kPlacesAtOnce = 8;
inline std::size_t low_bytes_of(const LocoPlaces& shape) {
  return shape.count * shape.low_bits() / 8;
}
inline std::uint64_t low_masks(unsigned low_bits) {
  return 0x0101010101010101 * ((std::uint64_t{1} << low_bits) - 1);
}

inline void pack_lows(const std::uint32_t* places, const LocoPlaces& shape, std::uint32_t first,
                      std::byte* packed) {
  const std::uint64_t masks = low_masks(shape.low_bits());
  const __m256i origin = _mm256_set1_epi32(static_cast<int>(first));
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  const __m256i both = _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4);
  for (std::size_t i = 0; i < shape.count; i += kPlacesAtOnce, packed += shape.low_bits()) {
    const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(places + i));
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_sub_epi32(loaded, origin), order);
    const __m256i joined = _mm256_permutevar8x32_epi32(bytes, both);
    const auto eight = static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm256_castsi256_si128(joined)));
    const std::uint64_t lows = _pext_u64(eight, masks);
    __builtin_memcpy(packed, &lows, sizeof(lows));
  }
}

// The bits by words: the places ascend, so that each word is written once.
inline void pack_highs(const std::uint32_t* places, const LocoPlaces& shape, std::uint32_t first,
                       std::byte* packed) {
  const unsigned low_bits = shape.low_bits();
  const std::size_t words = (shape.high_bits() + 63) / 64;
  std::uint64_t word = 0;
  std::size_t at = 0;
  const auto write_to = [&](std::size_t next) {
    for (; at < next; ++at, word = 0) __builtin_memcpy(packed + 8 * at, &word, sizeof(word));
  };
  for (std::size_t i = 0; i < shape.count; ++i) {
    const std::size_t one = ((places[i] - first) >> low_bits) + i;
    if (one / 64 != at) write_to(one / 64);
    word |= std::uint64_t{1} << one % 64;
  }
  write_to(words);
}

// Low parts first, and codes later: what is written behind either part is written again.
inline void pack_places(const std::uint32_t* places, const LocoPlaces& shape, std::uint32_t first,
                        std::byte* packed) {
  pack_lows(places, shape, first, packed);
  pack_highs(places, shape, first, packed + low_bytes_of(shape));
}

// The ones of a word, from `at` on; may write up to 64 of them behind the last.
inline void put_ones(std::uint64_t word, std::size_t at, std::uint16_t* ones) {
#ifdef __AVX512VBMI2__
  __m512i numbers = _mm512_set1_epi16(static_cast<short>(at));
  const __m512i up =
      _mm512_cvtepi8_epi16(_mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,
                                            19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31));
  numbers = _mm512_add_epi16(numbers, up);
  const auto low = static_cast<std::uint32_t>(word);
  const auto high = static_cast<std::uint32_t>(word >> 32);
  _mm512_storeu_si512(ones, _mm512_maskz_compress_epi16(low, numbers));
  _mm512_storeu_si512(ones + _mm_popcnt_u32(low),
                      _mm512_maskz_compress_epi16(high, _mm512_add_epi16(numbers, _mm512_set1_epi16(32))));
#else
  // By fours, since how many there are cannot be foreseen.
  for (; word != 0; ones += 4) {
    for (std::size_t i = 0; i < 4; ++i, word = _blsr_u64(word)) {
      ones[i] = static_cast<std::uint16_t>(at + _tzcnt_u64(word));
    }
  }
#endif
}

// Where the ones are. False: they are not `count`, or behind the last bit.
inline bool find_ones(const std::byte* packed, const LocoPlaces& shape, std::uint16_t* ones) {
  std::size_t found = 0;
  for (std::size_t at = 0; at < shape.high_bits(); at += 64) {
    std::uint64_t word;
    __builtin_memcpy(&word, packed + at / 8, sizeof(word));
    if (const std::size_t left = shape.high_bits() - at; left < 64) {
      word = _bzhi_u64(word, static_cast<unsigned>((left + 7) / 8 * 8));
      if (word >> left != 0) return false;
    }
    const auto more = static_cast<std::size_t>(_mm_popcnt_u64(word));
    if (found + more > shape.count) return false;
    put_ones(word, at, ones + found);
    found += more;
  }
  return found == shape.count;
}

inline bool unpack_places(const std::byte* packed, const LocoPlaces& shape, std::uint32_t* places) {
  std::uint16_t ones[kLocoMaxK + 64];
  if (!find_ones(packed + low_bytes_of(shape), shape, ones)) return false;
  const unsigned low_bits = shape.low_bits();
  const std::uint64_t masks = low_masks(low_bits);
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(low_bits));
  const __m256i to_next = _mm256_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6);
  const __m256i eight = _mm256_set1_epi32(kPlacesAtOnce);
  __m256i before_each = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256i last = _mm256_set1_epi32(-1);
  __m256i ascend = _mm256_set1_epi32(-1);
  for (std::size_t i = 0; i < shape.count; i += kPlacesAtOnce, packed += low_bits) {
    std::uint64_t packed_lows;
    __builtin_memcpy(&packed_lows, packed, sizeof(packed_lows));
    const auto bytes = static_cast<long long>(_pdep_u64(packed_lows, masks));
    const __m256i lows = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes));
    const __m256i found = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(ones + i)));
    const __m256i highs = _mm256_sub_epi32(found, before_each);
    const __m256i here = _mm256_or_si256(_mm256_sll_epi32(highs, shift), lows);
    const __m256i before = _mm256_blend_epi32(_mm256_permutevar8x32_epi32(here, to_next), last, 1);
    ascend = _mm256_and_si256(ascend, _mm256_cmpgt_epi32(here, before));
    last = _mm256_permutevar8x32_epi32(here, _mm256_set1_epi32(7));
    before_each = _mm256_add_epi32(before_each, eight);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places + i), here);
  }
  return _mm256_movemask_epi8(ascend) == -1 && places[shape.count - 1] < shape.length;
}

template <typename V>
constexpr LocoKernels make_loco_kernels() {
  return {quantize<V>, subtract<V>, decode<V>, pack_places, unpack_places};
}

}  // namespace
}  // namespace geocomm::codec
