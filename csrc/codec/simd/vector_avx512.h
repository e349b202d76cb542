// Vectors of sixteen floats or 32-bit integers: what vector_avx2.h has, for files that are compiled for
// AVX-512.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace geocomm::codec {
namespace {

// Orders for permutations of two registers: every second byte or word of them, and the bytes or words of one
// alternating with those of the other.
struct Orders {
  std::uint8_t even_bytes[64];
  std::uint8_t odd_bytes[64];
  std::uint8_t first_bytes[64];  // byte i of the first, byte i of the second, ...
  std::uint8_t last_bytes[64];   // from byte 32 on
  std::uint16_t even_words[32];
  std::uint16_t odd_words[32];
  std::uint16_t first_words[32];
  std::uint16_t last_words[32];
};
consteval Orders make_orders() {
  Orders orders{};
  for (unsigned i = 0; i < 64; ++i) {
    orders.even_bytes[i] = static_cast<std::uint8_t>(2 * i);
    orders.odd_bytes[i] = static_cast<std::uint8_t>(2 * i + 1);
    orders.first_bytes[i] = static_cast<std::uint8_t>(i / 2 + i % 2 * 64);
    orders.last_bytes[i] = static_cast<std::uint8_t>(32 + i / 2 + i % 2 * 64);
  }
  for (unsigned i = 0; i < 32; ++i) {
    orders.even_words[i] = static_cast<std::uint16_t>(2 * i);
    orders.odd_words[i] = static_cast<std::uint16_t>(2 * i + 1);
    orders.first_words[i] = static_cast<std::uint16_t>(i / 2 + i % 2 * 32);
    orders.last_words[i] = static_cast<std::uint16_t>(16 + i / 2 + i % 2 * 32);
  }
  return orders;
}
constexpr Orders kOrders = make_orders();

struct Avx512 {
  using Floats = __m512;
  using Ints = __m512i;
  using Mask = __mmask16;
  static constexpr std::size_t kLanes = 16;

  static Floats load(const std::byte* from) { return _mm512_loadu_ps(from); }
  static void store(std::byte* to, Floats a) { _mm512_storeu_ps(to, a); }
  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Floats a) { _mm512_storeu_ps(to, a); }
  // Past the caches; `to` is aligned to the vector.
  static void stream(std::byte* to, Floats a) { _mm512_stream_ps(reinterpret_cast<float*>(to), a); }
  static Ints load_ints(const std::byte* from) { return _mm512_loadu_si512(from); }
  static void store_ints(std::byte* to, Ints a) { _mm512_storeu_si512(to, a); }
  static Floats set(float a) { return _mm512_set1_ps(a); }
  static Ints set_int(std::int32_t a) { return _mm512_set1_epi32(a); }
  // a + b; where neither is NaN but the sum is, it is core::of_invalid()'s, as this machine makes it.
  static Floats sum(Floats a, Floats b) { return a + b; }
  // input + decay * residual. Where both are NaN it is the input's: an addition may keep either, as the
  // compiler likes.
  static Floats add_residual(Floats input, Floats decay, Floats residual) {
    const __mmask16 is_number = _mm512_cmp_ps_mask(input, input, _CMP_ORD_Q);
    return _mm512_add_ps(input, _mm512_maskz_mul_ps(is_number, decay, residual));
  }
  static Ints bits(Floats a) { return _mm512_castps_si512(a); }
  static Floats floats(Ints a) { return _mm512_castsi512_ps(a); }

  static Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static Ints subtract(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
  static Ints min(Ints a, Ints b) { return _mm512_min_epi32(a, b); }
  static Ints max(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
  template <int kBits>
  static Ints shift_left(Ints a) {
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>
  static Ints shift_right(Ints a) {
    return _mm512_srli_epi32(a, kBits);
  }
  template <int kBits>
  static Ints shift_right_signed(Ints a) {
    return _mm512_srai_epi32(a, kBits);
  }
  // By other bits in each lane; 32 or more leave 0.
  static Ints shift_left_by(Ints a, Ints bits) { return _mm512_sllv_epi32(a, bits); }
  static Ints shift_right_by(Ints a, Ints bits) { return _mm512_srlv_epi32(a, bits); }
  static Mask greater(Ints a, Ints b) { return _mm512_cmpgt_epi32_mask(a, b); }
  static Mask greater_equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
  static Mask is_nan(Floats a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
  static Ints select(Mask mask, Ints yes, Ints no) { return _mm512_mask_mov_epi32(no, mask, yes); }
  static Ints subtract_where(Mask mask, Ints a, Ints b) { return _mm512_mask_sub_epi32(a, mask, a, b); }
  static Ints where(Mask mask, Ints a) { return _mm512_maskz_mov_epi32(mask, a); }  // 0 elsewhere
  static bool any(Mask mask) { return mask != 0; }
  // One bit per lane, the first in the lowest.
  static std::uint32_t bits_of(Mask mask) { return mask; }
  // To the nearest integer, ties to even.
  static Ints round(Floats a) { return _mm512_cvtps_epi32(a); }
  static Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }

  static std::int32_t largest(Ints a) { return _mm512_reduce_max_epi32(a); }
  // Adds the upper half to the lower until one is left.
  static float fold(Floats a) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)));
  }

  // Lanes of the mask, closed up; a whole vector is written.
  static constexpr bool kClosesUpLanes = true;
  static void close_up(std::uint32_t mask, Ints a, void* to) {
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<Mask>(mask), a));
  }
  static Ints lane_numbers() {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }

  // The squares of two halves are added to a vector of sums each.
  using Doubles = __m512d;
  static constexpr std::size_t kDoubles = 8;
  static void add_squares(Doubles* sums, Floats a) {
    const Doubles low = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
    const Doubles high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
    sums[0] = sums[0] + low * low;
    sums[1] = sums[1] + high * high;
  }
  static Doubles load_doubles(const double* from) { return _mm512_loadu_pd(from); }
  static void store_doubles(double* to, Doubles a) { _mm512_storeu_pd(to, a); }

  // Bytes and 16-bit words, one per lane.
  static Ints load_bytes(const std::byte* from) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  // Lanes from 0 to 255.
  static void store_bytes(std::byte* to, Ints a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a));
  }
  static Ints load_words(const std::byte* from) { return _mm512_cvtepu16_epi32(load_packed(from)); }
  // Lanes from 0 to 65535.
  static void store_words(std::byte* to, Ints a) { store_packed(to, _mm512_cvtepi32_epi16(a)); }
  static Floats load_half(const std::byte* from) { return _mm512_cvtph_ps(load_packed(from)); }
  // Quiets NaN.
  static void store_half(std::byte* to, Floats a) { store_packed(to, _mm512_cvtps_ph(a, kNearest)); }
  static Floats rounded_to_half(Floats a) { return _mm512_cvtph_ps(_mm512_cvtps_ph(a, kNearest)); }
  // The lanes, from -128 to 127, of four vectors.
  static Ints to_bytes(Ints a, Ints b, Ints c, Ints d) {
    const Ints packed = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
    const Ints order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, packed);
  }

  // A vector of bytes, and a bit of each.
  static constexpr std::size_t kBytes = 64;
  using ByteMask = std::uint64_t;
  static ByteMask nonzero_bytes(Ints bytes) { return _cvtmask64_u64(_mm512_test_epi8_mask(bytes, bytes)); }
  static ByteMask negative_bytes(Ints bytes) { return _cvtmask64_u64(_mm512_movepi8_mask(bytes)); }
  static ByteMask greater_bytes(Ints a, Ints b) { return _cvtmask64_u64(_mm512_cmpgt_epi8_mask(a, b)); }
  static Ints set_byte(char a) { return _mm512_set1_epi8(a); }
  static Ints abs_bytes(Ints a) { return _mm512_abs_epi8(a); }
  // Where bits are set.
  static Ints negate_bytes(ByteMask bits, Ints a) {
    return _mm512_mask_sub_epi8(a, _cvtu64_mask64(bits), _mm512_setzero_si512(), a);
  }
  // Writes the bytes whose bits are set, closed up, and moves `to` behind them; up to kBytes there are
  // written as well. The form that keeps bytes, not the one that zeroes them: Bochs, which the tests run on
  // where there is no AVX-512, gets that wrong for 64 bits.
  static void compact(ByteMask bits, Ints bytes, std::byte*& to) {
    store_ints(to, _mm512_mask_compress_epi8(bytes, _cvtu64_mask64(bits), bytes));
    to += _mm_popcnt_u64(bits);
  }
  // The other way: the next signed bytes where bits are set, zeros elsewhere, as four vectors. Moves `from`
  // behind them; up to kBytes there are read as well.
  static void expand(ByteMask bits, const std::byte*& from, Ints (&lanes)[4]) {
    const Ints bytes = expand_bytes(bits, from);
    lanes[0] = _mm512_cvtepi8_epi32(_mm512_castsi512_si128(bytes));
    lanes[1] = _mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32(bytes, 1));
    lanes[2] = _mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32(bytes, 2));
    lanes[3] = _mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32(bytes, 3));
  }
  // As bytes.
  static Ints expand_bytes(ByteMask bits, const std::byte*& from) {
    return expand_over(_mm512_setzero_si512(), bits, from);
  }
  // With bytes of `others`, from 0 to 127 and no larger than any of these, elsewhere. The load stays an
  // instruction of its own: Bochs gets an expansion from memory wrong.
  static Ints expand_over(Ints others, ByteMask bits, const std::byte*& from) {
    Ints next = load_ints(from);
    asm("" : "+v"(next));
    from += _mm_popcnt_u64(bits);
    return _mm512_mask_expand_epi8(others, _cvtu64_mask64(bits), next);
  }

  // One bit per lane, the first in the lowest: signs of floats, and a float with those
  // that a bitmap has from `index` on.
  static std::uint32_t signs(Floats a) { return _mm512_movepi32_mask(bits(a)); }
  static Floats with_signs(const std::byte* bitmap, std::size_t index, Floats magnitude) {
    std::uint16_t signs;
    __builtin_memcpy(&signs, bitmap + index / 8, sizeof(signs));
    const Ints m = bits(magnitude);
    return floats(_mm512_mask_or_epi32(m, signs, m, set_int(INT32_MIN)));
  }
  static Ints load_pairs(const std::byte* from) {
    std::int32_t bits;
    __builtin_memcpy(&bits, from, sizeof(bits));
    return _mm512_srlv_epi32(set_int(bits),
                             _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
  }
  // table[code & 3]
  static Floats look_up(Floats table, Ints codes) { return _mm512_permutevar_ps(table, codes); }
  static Floats set_table(float a, float b, float c, float d) {
    return _mm512_broadcast_f32x4(_mm_setr_ps(a, b, c, d));
  }

  // 16-bit words of two vectors.
  template <int kBits>
  static Ints shift_words_left(Ints a) {
    return _mm512_slli_epi16(a, kBits);
  }
  template <int kBits>
  static Ints shift_words_right(Ints a) {
    return _mm512_srli_epi16(a, kBits);
  }
  static Ints high_bytes(Ints a, Ints b) { return pick_bytes(a, kOrders.odd_bytes, b); }
  static Ints low_bytes(Ints a, Ints b) { return pick_bytes(a, kOrders.even_bytes, b); }
  static void join_bytes(Ints low, Ints high, Ints& a, Ints& b) {
    a = pick_bytes(low, kOrders.first_bytes, high);
    b = pick_bytes(low, kOrders.last_bytes, high);
  }
  static ByteMask nonzero_words(Ints a, Ints b) {
    const std::uint64_t first = _cvtmask32_u32(_mm512_test_epi16_mask(a, a));
    const std::uint64_t last = _cvtmask32_u32(_mm512_test_epi16_mask(b, b));
    return first | last << 32;
  }
  // Words of the 32-bit lanes of two vectors, and back to memory.
  static Ints upper_halves(Ints a, Ints b) { return pick_words(a, kOrders.odd_words, b); }
  static Ints lower_halves(Ints a, Ints b) { return pick_words(a, kOrders.even_words, b); }
  static void store_joined(std::byte* to, Ints upper, Ints lower) {
    store_ints(to, pick_words(lower, kOrders.first_words, upper));
    store_ints(to + kBytes, pick_words(lower, kOrders.last_words, upper));
  }

  // Philox: 64-bit lanes of which the low halves count.
  static constexpr std::size_t kWideLanes = 8;
  static Ints set_wide(std::uint64_t a) { return _mm512_set1_epi64(static_cast<long long>(a)); }
  static Ints count_from(std::uint64_t first) {
    return set_wide(first) + _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
  }
  static Ints multiply(Ints a, Ints b) { return _mm512_mul_epu32(a, b); }
  static Ints high_half(Ints a) { return _mm512_srli_epi64(a, 32); }
  static Ints exclusive_or(Ints a, Ints b, Ints c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
  // Writes a, b, c, d of each lane, one lane after the other.
  static void store_quads(std::byte* to, Ints a, Ints b, Ints c, Ints d) {
    const Ints ab = _mm512_mask_blend_epi32(0xAAAA, a, _mm512_slli_epi64(b, 32));
    const Ints cd = _mm512_mask_blend_epi32(0xAAAA, c, _mm512_slli_epi64(d, 32));
    store_ints(to, _mm512_permutex2var_epi64(ab, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), cd));
    store_ints(to + 64, _mm512_permutex2var_epi64(ab, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), cd));
  }

 private:
  static Ints pick_bytes(Ints a, const std::uint8_t (&order)[64], Ints b) {
    return _mm512_permutex2var_epi8(a, _mm512_loadu_si512(order), b);
  }
  static Ints pick_words(Ints a, const std::uint16_t (&order)[32], Ints b) {
    return _mm512_permutex2var_epi16(a, _mm512_loadu_si512(order), b);
  }

  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  static __m256i load_packed(const std::byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store_packed(std::byte* to, __m256i a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), a);
  }
};

}  // namespace
}  // namespace geocomm::codec
