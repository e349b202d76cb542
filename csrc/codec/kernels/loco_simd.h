// The loops of LocoKernels on vectors V (vector_avx2.h, vector_avx512.h). All is local to the file that
// includes it. Counts are multiples of kLocoStep.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "codec/kernels/loco_kernels.h"
#include "codec/kernels/partial_sums.h"
#include "codec/kernels/vector_elements.h"

namespace geocomm::codec {
namespace {

[[gnu::always_inline]] inline const std::byte* bytes_of(const float* values) {
  return reinterpret_cast<const std::byte*>(values);
}
[[gnu::always_inline]] inline std::byte* bytes_of(float* values) {
  return reinterpret_cast<std::byte*>(values);
}

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
    const auto value = V::load(bytes_of(values + i));
    const auto scaled = V::floats(magnitude_bits<V>(value)) * down;
    const auto is_high = V::greater_equal(scaled * sum, squares);
    const auto highs = V::bits(scaled) & is_high;
    V::store_ints(bytes_of(high + i), highs);
    V::store_ints(bytes_of(low + i), V::bits(scaled) ^ highs);
    const std::uint32_t large = V::signs(V::floats(is_high));
    parts.high_count += static_cast<std::size_t>(_mm_popcnt_u32(large));
    const std::uint32_t packed = _pdep_u32(large, 0x55555555) | _pdep_u32(V::signs(value), 0xAAAAAAAA);
    __builtin_memcpy(codes + i / 4, &packed, V::kLanes / 4);
  }
  parts.low = sum_vectors<V>(count, [&](std::size_t i) { return V::load(bytes_of(low + i)); });
  parts.high = sum_vectors<V>(count, [&](std::size_t i) { return V::load(bytes_of(high + i)); });
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
    V::store(bytes_of(lost + i), V::load(bytes_of(values + i)) - decoded);
  }
}

template <typename V>
void decode(const std::byte* codes, std::size_t count, const LocoLevels& levels, float* values) {
  const auto table = table_of<V>(levels);
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    V::store(bytes_of(values + i), V::look_up(table, V::load_pairs(codes + i / 4)));
  }
}

// Eight places are twelve bytes.
inline constexpr std::size_t kPlacesAtOnce = 8;
inline constexpr std::size_t kBytesOfPlaces = 12;

inline void pack_places(const std::uint32_t* places, std::size_t count, std::uint32_t first,
                        std::byte* packed) {
  const __m256i origin = _mm256_set1_epi32(static_cast<int>(first));
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 8, 9, 10, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  for (std::size_t i = 0; i < count; i += kPlacesAtOnce, packed += kBytesOfPlaces) {
    const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(places + i));
    const __m256i pairs = _mm256_sub_epi32(loaded, origin);
    const __m256i joined = _mm256_or_si256(pairs, _mm256_srli_epi64(pairs, 20));
    const __m256i bytes = _mm256_shuffle_epi8(joined, order);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(packed), _mm256_castsi256_si128(bytes));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(packed + kBytesOfPlaces / 2),
                     _mm256_extracti128_si256(bytes, 1));
  }
}

inline bool unpack_places(const std::byte* packed, std::size_t count, std::size_t length,
                          std::uint32_t* places) {
  // Of each place the two bytes that it lies in.
  const __m256i order = _mm256_setr_epi8(0, 1, -1, -1, 1, 2, -1, -1, 3, 4, -1, -1, 4, 5, -1, -1,  //
                                         6, 7, -1, -1, 7, 8, -1, -1, 9, 10, -1, -1, 10, 11, -1, -1);
  const __m256i shift = _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4);
  const __m256i to_next = _mm256_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6);
  const __m256i mask = _mm256_set1_epi32(0xFFF);
  __m256i last = _mm256_set1_epi32(-1);
  __m256i wrong = _mm256_setzero_si256();
  for (std::size_t i = 0; i < count; i += kPlacesAtOnce, packed += kBytesOfPlaces) {
    const __m256i bytes =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
    const __m256i here = _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(bytes, order), shift), mask);
    const __m256i before = _mm256_blend_epi32(_mm256_permutevar8x32_epi32(here, to_next), last, 1);
    wrong = _mm256_or_si256(wrong, _mm256_cmpgt_epi32(_mm256_add_epi32(before, _mm256_set1_epi32(1)), here));
    last = _mm256_permutevar8x32_epi32(here, _mm256_set1_epi32(7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places + i), here);
  }
  return _mm256_testz_si256(wrong, wrong) != 0 && (count == 0 || places[count - 1] < length);
}

template <typename V>
constexpr LocoKernels make_loco_kernels() {
  return {quantize<V>, subtract<V>, decode<V>, pack_places, unpack_places};
}

}  // namespace
}  // namespace geocomm::codec
