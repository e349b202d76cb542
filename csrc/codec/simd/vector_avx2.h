// Vectors of eight floats or 32-bit integers, as block_simd.h and cast_simd.h take them. For files that are
// compiled for AVX2: all is local to the file, since its code must not be shared with others.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "codec/simd/bitmap_tables.h"

namespace geocomm::codec {
namespace {

struct Avx2 {
  using Floats = __m256;
  using Ints = __m256i;
  using Mask = __m256i;  // all ones where it is true
  static constexpr std::size_t kLanes = 8;

  static Floats load(const std::byte* from) { return _mm256_loadu_ps(reinterpret_cast<const float*>(from)); }
  static void store(std::byte* to, Floats a) { _mm256_storeu_ps(reinterpret_cast<float*>(to), a); }
  static Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Floats a) { _mm256_storeu_ps(to, a); }
  // Past the caches; `to` is aligned to the vector.
  static void stream(std::byte* to, Floats a) { _mm256_stream_ps(reinterpret_cast<float*>(to), a); }
  static Ints load_ints(const std::byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store_ints(std::byte* to, Ints a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), a); }
  static Floats set(float a) { return _mm256_set1_ps(a); }
  static Ints set_int(std::int32_t a) { return _mm256_set1_epi32(a); }
  // a + b; where neither is NaN but the sum is, it is core::of_invalid()'s, as this machine makes it.
  static Floats sum(Floats a, Floats b) { return a + b; }
  // input + decay * residual. Where both are NaN it is the input's: an addition may keep either, as the
  // compiler likes.
  static Floats add_residual(Floats input, Floats decay, Floats residual) {
    return _mm256_add_ps(input, _mm256_andnot_ps(floats(is_nan(input)), _mm256_mul_ps(decay, residual)));
  }
  static Ints bits(Floats a) { return _mm256_castps_si256(a); }
  static Floats floats(Ints a) { return _mm256_castsi256_ps(a); }

  static Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
  static Ints subtract(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
  static Ints min(Ints a, Ints b) { return _mm256_min_epi32(a, b); }
  static Ints max(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
  template <int kBits>
  static Ints shift_left(Ints a) {
    return _mm256_slli_epi32(a, kBits);
  }
  template <int kBits>
  static Ints shift_right(Ints a) {
    return _mm256_srli_epi32(a, kBits);
  }
  template <int kBits>
  static Ints shift_right_signed(Ints a) {
    return _mm256_srai_epi32(a, kBits);
  }
  // By other bits in each lane; 32 or more leave 0.
  static Ints shift_left_by(Ints a, Ints bits) { return _mm256_sllv_epi32(a, bits); }
  static Ints shift_right_by(Ints a, Ints bits) { return _mm256_srlv_epi32(a, bits); }
  static Mask greater(Ints a, Ints b) { return _mm256_cmpgt_epi32(a, b); }
  static Mask greater_equal(Floats a, Floats b) { return bits(_mm256_cmp_ps(a, b, _CMP_GE_OQ)); }
  static Mask is_nan(Floats a) { return bits(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)); }
  static Ints select(Mask mask, Ints yes, Ints no) { return _mm256_blendv_epi8(no, yes, mask); }
  static Ints subtract_where(Mask mask, Ints a, Ints b) { return subtract(a, mask & b); }
  static Ints where(Mask mask, Ints a) { return mask & a; }  // 0 elsewhere
  static bool any(Mask mask) { return _mm256_testz_si256(mask, mask) == 0; }
  // One bit per lane, the first in the lowest.
  static std::uint32_t bits_of(Mask mask) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(floats(mask)));
  }
  // To the nearest integer, ties to even.
  static Ints round(Floats a) { return _mm256_cvtps_epi32(a); }
  static Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }

  static std::int32_t largest(Ints a) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1)));
  }
  // Adds the upper half to the lower until one is left.
  static float fold(Floats a) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)));
  }

  // Whether lanes can be closed up, as vector_avx512.h does it.
  static constexpr bool kClosesUpLanes = false;

  // The squares of two halves are added to a vector of sums each.
  using Doubles = __m256d;
  static constexpr std::size_t kDoubles = 4;
  static void add_squares(Doubles* sums, Floats a) {
    const Doubles low = _mm256_cvtps_pd(_mm256_castps256_ps128(a));
    const Doubles high = _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
    sums[0] = sums[0] + low * low;
    sums[1] = sums[1] + high * high;
  }
  static Doubles load_doubles(const double* from) { return _mm256_loadu_pd(from); }
  static void store_doubles(double* to, Doubles a) { _mm256_storeu_pd(to, a); }

  // Bytes and 16-bit words, one per lane.
  static Ints load_bytes(const std::byte* from) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  // Lanes from 0 to 255.
  static void store_bytes(std::byte* to, Ints a) {
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
  }
  static Ints load_words(const std::byte* from) { return _mm256_cvtepu16_epi32(load_packed(from)); }
  // Lanes from 0 to 65535.
  static void store_words(std::byte* to, Ints a) {
    const __m256i packed = _mm256_packus_epi32(a, a);
    store_packed(to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
  }
  static Floats load_half(const std::byte* from) { return _mm256_cvtph_ps(load_packed(from)); }
  // Quiets NaN.
  static void store_half(std::byte* to, Floats a) { store_packed(to, _mm256_cvtps_ph(a, kNearest)); }
  static Floats rounded_to_half(Floats a) { return _mm256_cvtph_ps(_mm256_cvtps_ph(a, kNearest)); }
  // The lanes, from -128 to 127, of four vectors.
  static Ints to_bytes(Ints a, Ints b, Ints c, Ints d) {
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }

  // A vector of bytes, and a bit of each.
  static constexpr std::size_t kBytes = 32;
  using ByteMask = std::uint32_t;
  static ByteMask nonzero_bytes(Ints bytes) {
    return ~static_cast<ByteMask>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256())));
  }
  static ByteMask negative_bytes(Ints bytes) { return static_cast<ByteMask>(_mm256_movemask_epi8(bytes)); }
  static ByteMask greater_bytes(Ints a, Ints b) { return negative_bytes(_mm256_cmpgt_epi8(a, b)); }
  static Ints set_byte(char a) { return _mm256_set1_epi8(a); }
  static Ints abs_bytes(Ints a) { return _mm256_abs_epi8(a); }
  // Where bits are set.
  static Ints negate_bytes(ByteMask bits, Ints a) {
    const Ints bytes_of_bits =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const Ints bit_of_byte = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    const Ints spread = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), bytes_of_bits);
    const Ints is_set = _mm256_cmpeq_epi8(spread & bit_of_byte, bit_of_byte);
    return _mm256_sub_epi8(a ^ is_set, is_set);
  }
  // Writes the bytes whose bits are set, closed up, and moves `to` behind them; up to kBytes there are
  // written as well.
  static void compact(ByteMask bits, Ints bytes, std::byte*& to) {
    const __m128i low = _mm256_castsi256_si128(bytes);
    const __m128i high = _mm256_extracti128_si256(bytes, 1);
    compact_eight(bits & 0xFF, low, to);
    compact_eight(bits >> 8 & 0xFF, _mm_unpackhi_epi64(low, low), to);
    compact_eight(bits >> 16 & 0xFF, high, to);
    compact_eight(bits >> 24, _mm_unpackhi_epi64(high, high), to);
  }
  // The other way: the next signed bytes where bits are set, zeros elsewhere, as four vectors. Moves `from`
  // behind them; up to kBytes there are read as well.
  static void expand(ByteMask bits, const std::byte*& from, Ints (&lanes)[4]) {
    for (std::size_t part = 0; part < 4; ++part, bits >>= 8) {
      lanes[part] = _mm256_cvtepi8_epi32(expand_eight(bits & 0xFF, from));
    }
  }
  // As bytes.
  static Ints expand_bytes(ByteMask bits, const std::byte*& from) {
    const __m128i a = expand_eight(bits & 0xFF, from);
    const __m128i b = expand_eight(bits >> 8 & 0xFF, from);
    const __m128i c = expand_eight(bits >> 16 & 0xFF, from);
    const __m128i d = expand_eight(bits >> 24, from);
    return _mm256_set_m128i(_mm_unpacklo_epi64(c, d), _mm_unpacklo_epi64(a, b));
  }
  // With bytes of `others`, from 0 to 127 and no larger than any of these, elsewhere.
  static Ints expand_over(Ints others, ByteMask bits, const std::byte*& from) {
    return _mm256_max_epi8(others, expand_bytes(bits, from));
  }

  // One bit per lane, the first in the lowest: signs of floats, and a float with those
  // that a bitmap has from `index` on.
  static std::uint32_t signs(Floats a) { return static_cast<std::uint32_t>(_mm256_movemask_ps(a)); }
  static Floats with_signs(const std::byte* bitmap, std::size_t index, Floats magnitude) {
    const __m256i bits = _mm256_set1_epi32(static_cast<int>(bitmap[index / 8]));
    const __m256i at_top = _mm256_sllv_epi32(bits, _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24));
    return _mm256_or_ps(magnitude, _mm256_and_ps(floats(at_top), _mm256_set1_ps(-0.0f)));
  }
  // Two bits per lane, the first in the lowest; above them anything.
  static Ints load_pairs(const std::byte* from) {
    std::uint16_t bits;
    __builtin_memcpy(&bits, from, sizeof(bits));
    return _mm256_srlv_epi32(_mm256_set1_epi32(bits), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
  }
  // table[code & 3]
  static Floats look_up(Floats table, Ints codes) { return _mm256_permutevar_ps(table, codes); }
  static Floats set_table(float a, float b, float c, float d) {
    return _mm256_setr_ps(a, b, c, d, a, b, c, d);
  }

  // 16-bit words of two vectors.
  template <int kBits>
  static Ints shift_words_left(Ints a) {
    return _mm256_slli_epi16(a, kBits);
  }
  template <int kBits>
  static Ints shift_words_right(Ints a) {
    return _mm256_srli_epi16(a, kBits);
  }
  static Ints high_bytes(Ints a, Ints b) {
    return in_order(_mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8)));
  }
  static Ints low_bytes(Ints a, Ints b) {
    const Ints mask = _mm256_set1_epi16(0xFF);
    return in_order(_mm256_packus_epi16(a & mask, b & mask));
  }
  static void join_bytes(Ints low, Ints high, Ints& a, Ints& b) {
    a = _mm256_unpacklo_epi8(in_order(low), in_order(high));
    b = _mm256_unpackhi_epi8(in_order(low), in_order(high));
  }
  static ByteMask nonzero_words(Ints a, Ints b) {
    const Ints zero = _mm256_setzero_si256();
    return ~negative_bytes(
        in_order(_mm256_packs_epi16(_mm256_cmpeq_epi16(a, zero), _mm256_cmpeq_epi16(b, zero))));
  }
  // Words of the 32-bit lanes of two vectors, and back to memory.
  static Ints upper_halves(Ints a, Ints b) {
    return in_order(_mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16)));
  }
  static Ints lower_halves(Ints a, Ints b) {
    const Ints mask = _mm256_set1_epi32(0xFFFF);
    return in_order(_mm256_packus_epi32(a & mask, b & mask));
  }
  static void store_joined(std::byte* to, Ints upper, Ints lower) {
    const Ints even = _mm256_unpacklo_epi16(lower, upper);  // 0-3 and 8-11
    const Ints odd = _mm256_unpackhi_epi16(lower, upper);   // 4-7 and 12-15
    store_ints(to, _mm256_permute2x128_si256(even, odd, 0x20));
    store_ints(to + kBytes, _mm256_permute2x128_si256(even, odd, 0x31));
  }

  // Philox: 64-bit lanes of which the low halves count.
  static constexpr std::size_t kWideLanes = 4;
  static Ints set_wide(std::uint64_t a) { return _mm256_set1_epi64x(static_cast<long long>(a)); }
  static Ints count_from(std::uint64_t first) { return set_wide(first) + _mm256_setr_epi64x(0, 1, 2, 3); }
  static Ints multiply(Ints a, Ints b) { return _mm256_mul_epu32(a, b); }
  static Ints high_half(Ints a) { return _mm256_srli_epi64(a, 32); }
  static Ints exclusive_or(Ints a, Ints b, Ints c) { return a ^ b ^ c; }
  // Writes a, b, c, d of each lane, one lane after the other.
  static void store_quads(std::byte* to, Ints a, Ints b, Ints c, Ints d) {
    const Ints ab = _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xAA);
    const Ints cd = _mm256_blend_epi32(c, _mm256_slli_epi64(d, 32), 0xAA);
    const Ints even = _mm256_unpacklo_epi64(ab, cd);  // of lanes 0 and 2
    const Ints odd = _mm256_unpackhi_epi64(ab, cd);
    store_ints(to, _mm256_permute2x128_si256(even, odd, 0x20));
    store_ints(to + 32, _mm256_permute2x128_si256(even, odd, 0x31));
  }

 private:
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  static __m128i load_packed(const std::byte* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static void compact_eight(std::uint32_t bits, __m128i bytes, std::byte*& to) {
    const __m128i order = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kCompact.order[bits]));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(bytes, order));
    to += _mm_popcnt_u32(bits);
  }
  static __m128i expand_eight(std::uint32_t bits, const std::byte*& from) {
    const __m128i order = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kExpand.order[bits]));
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    from += _mm_popcnt_u32(bits);
    return _mm_shuffle_epi8(packed, order);
  }
  static void store_packed(std::byte* to, __m128i a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), a); }
  // Packing works in halves of 128 bits: 64-bit quarters come out as 0, 2, 1, 3.
  static Ints in_order(Ints packed) { return _mm256_permute4x64_epi64(packed, 0xD8); }
};

}  // namespace
}  // namespace geocomm::codec
