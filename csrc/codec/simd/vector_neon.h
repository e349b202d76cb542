// Vectors of four floats or 32-bit integers for arm64, whose every machine has them: what vector_avx2.h is
// for AVX2. All is local to the file that includes it.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "codec/simd/bitmap_tables.h"

namespace geocomm::codec {
namespace {

struct Neon {
  using Floats = float32x4_t;
  using Ints = int32x4_t;
  using Mask = uint32x4_t;  // all ones where it is true
  static constexpr std::size_t kLanes = 4;

  static Floats load(const std::byte* from) { return vreinterpretq_f32_u8(load_packed(from)); }
  static void store(std::byte* to, Floats a) { store_packed(to, vreinterpretq_u8_f32(a)); }
  static Floats load(const float* from) { return vld1q_f32(from); }
  static void store(float* to, Floats a) { vst1q_f32(to, a); }
  // There are no stores past the caches.
  static void stream(std::byte* to, Floats a) { store(to, a); }
  static Ints load_ints(const std::byte* from) { return vreinterpretq_s32_u8(load_packed(from)); }
  static void store_ints(std::byte* to, Ints a) { store_packed(to, vreinterpretq_u8_s32(a)); }
  static Floats set(float a) { return vdupq_n_f32(a); }
  static Ints set_int(std::int32_t a) { return vdupq_n_s32(a); }
  // a + b; where that is NaN and neither of them is, the NaN of x86-64 (core::of_invalid).
  static Floats sum(Floats a, Floats b) {
    const Floats result = a + b;
    const Mask invalid = is_nan(result) & ~is_nan(a) & ~is_nan(b);
    return vreinterpretq_f32_u32(vreinterpretq_u32_f32(result) | (invalid & vdupq_n_u32(0x80000000)));
  }
  // input + decay * residual. Where both are NaN it is the input's.
  static Floats add_residual(Floats input, Floats decay, Floats residual) {
    Floats product = decay * residual;
    const Mask invalid = is_nan(product) & ~is_nan(residual);
    product = vreinterpretq_f32_u32(vreinterpretq_u32_f32(product) | (invalid & vdupq_n_u32(0x80000000)));
    return sum(input, floats(where(~is_nan(input), bits(product))));
  }
  static Ints bits(Floats a) { return vreinterpretq_s32_f32(a); }
  static Floats floats(Ints a) { return vreinterpretq_f32_s32(a); }

  static Ints add(Ints a, Ints b) { return vaddq_s32(a, b); }
  static Ints subtract(Ints a, Ints b) { return vsubq_s32(a, b); }
  static Ints min(Ints a, Ints b) { return vminq_s32(a, b); }
  static Ints max(Ints a, Ints b) { return vmaxq_s32(a, b); }
  template <int kBits>
  static Ints shift_left(Ints a) {
    return vshlq_n_s32(a, kBits);
  }
  template <int kBits>
  static Ints shift_right(Ints a) {
    return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), kBits));
  }
  template <int kBits>
  static Ints shift_right_signed(Ints a) {
    return vshrq_n_s32(a, kBits);
  }
  static Mask greater(Ints a, Ints b) { return vcgtq_s32(a, b); }
  static Mask greater_equal(Floats a, Floats b) { return vcgeq_f32(a, b); }
  static Mask is_nan(Floats a) { return vmvnq_u32(vceqq_f32(a, a)); }
  static Ints select(Mask mask, Ints yes, Ints no) { return vbslq_s32(mask, yes, no); }
  static Ints where(Mask mask, Ints a) { return vreinterpretq_s32_u32(mask) & a; }  // 0 elsewhere
  static bool any(Mask mask) { return vmaxvq_u32(mask) != 0; }
  // One bit per lane, the first in the lowest.
  static std::uint32_t bits_of(Mask mask) { return vaddvq_u32(mask & Mask{1, 2, 4, 8}); }
  // To the nearest integer, ties to even.
  static Ints round(Floats a) { return vcvtnq_s32_f32(a); }
  static Floats to_floats(Ints a) { return vcvtq_f32_s32(a); }

  static std::int32_t largest(Ints a) { return vmaxvq_s32(a); }
  // Adds the upper half to the lower until one is left.
  static float fold(Floats a) {
    const float32x2_t half = vget_low_f32(a) + vget_high_f32(a);
    return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
  }

  // Whether lanes can be closed up, as vector_avx512.h does it.
  static constexpr bool kClosesUpLanes = false;

  // The squares of two halves are added to a vector of sums each.
  using Doubles = float64x2_t;
  static constexpr std::size_t kDoubles = 2;
  static void add_squares(Doubles* sums, Floats a) {
    const Doubles low = vcvt_f64_f32(vget_low_f32(a));
    const Doubles high = vcvt_high_f64_f32(a);
    sums[0] = sums[0] + low * low;
    sums[1] = sums[1] + high * high;
  }
  static Doubles load_doubles(const double* from) { return vld1q_f64(from); }
  static void store_doubles(double* to, Doubles a) { vst1q_f64(to, a); }

  // Bytes and 16-bit words, one per lane.
  static Ints load_bytes(const std::byte* from) {
    std::uint32_t four;
    __builtin_memcpy(&four, from, sizeof(four));
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)))));
  }
  // Lanes from 0 to 255.
  static void store_bytes(std::byte* to, Ints a) {
    const uint16x4_t words = vmovn_u32(vreinterpretq_u32_s32(a));
    const std::uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0);
    __builtin_memcpy(to, &four, sizeof(four));
  }
  static Ints load_words(const std::byte* from) {
    return vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_u8(load_half_packed(from))));
  }
  // Lanes from 0 to 65535.
  static void store_words(std::byte* to, Ints a) {
    store_half_packed(to, vreinterpret_u8_u16(vmovn_u32(vreinterpretq_u32_s32(a))));
  }
  static Floats load_half(const std::byte* from) {
    return vcvt_f32_f16(vreinterpret_f16_u8(load_half_packed(from)));
  }
  // Quiets NaN.
  static void store_half(std::byte* to, Floats a) {
    store_half_packed(to, vreinterpret_u8_f16(vcvt_f16_f32(a)));
  }
  static Floats rounded_to_half(Floats a) { return vcvt_f32_f16(vcvt_f16_f32(a)); }
  // The lanes, from -128 to 127, of four vectors.
  static Ints to_bytes(Ints a, Ints b, Ints c, Ints d) {
    const int16x8_t first = vcombine_s16(vqmovn_s32(a), vqmovn_s32(b));
    const int16x8_t last = vcombine_s16(vqmovn_s32(c), vqmovn_s32(d));
    return vreinterpretq_s32_s8(vcombine_s8(vqmovn_s16(first), vqmovn_s16(last)));
  }

  // A vector of bytes, and a bit of each.
  static constexpr std::size_t kBytes = 16;
  using ByteMask = std::uint16_t;
  static ByteMask nonzero_bytes(Ints bytes) {
    const uint8x16_t a = vreinterpretq_u8_s32(bytes);
    return bits_of_bytes(vtstq_u8(a, a));
  }
  static ByteMask negative_bytes(Ints bytes) { return bits_of_bytes(vcltzq_s8(vreinterpretq_s8_s32(bytes))); }
  static ByteMask greater_bytes(Ints a, Ints b) {
    return bits_of_bytes(vcgtq_s8(vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b)));
  }
  static Ints set_byte(char a) { return vreinterpretq_s32_s8(vdupq_n_s8(static_cast<std::int8_t>(a))); }
  static Ints abs_bytes(Ints a) { return vreinterpretq_s32_s8(vabsq_s8(vreinterpretq_s8_s32(a))); }
  // Where bits are set.
  static Ints negate_bytes(ByteMask bits, Ints a) {
    const uint8x16_t spread = vcombine_u8(vdup_n_u8(static_cast<std::uint8_t>(bits)),
                                          vdup_n_u8(static_cast<std::uint8_t>(bits >> 8)));
    const uint8x16_t is_set = vtstq_u8(spread, bit_of_byte());
    const uint8x16_t bytes = vreinterpretq_u8_s32(a);
    return vreinterpretq_s32_u8(vsubq_u8(veorq_u8(bytes, is_set), is_set));
  }
  // Writes the bytes whose bits are set, closed up, and moves `to` behind them; up to kBytes there are
  // written as well.
  static void compact(ByteMask bits, Ints bytes, std::byte*& to) {
    const uint8x16_t both = vreinterpretq_u8_s32(bytes);
    compact_eight(bits & 0xFF, vget_low_u8(both), to);
    compact_eight(bits >> 8, vget_high_u8(both), to);
  }
  // The other way: the next signed bytes where bits are set, zeros elsewhere, as four vectors. Moves `from`
  // behind them; up to kBytes there are read as well.
  static void expand(ByteMask bits, const std::byte*& from, Ints (&lanes)[4]) {
    const int8x16_t bytes = vreinterpretq_s8_s32(expand_bytes(bits, from));
    const int16x8_t first = vmovl_s8(vget_low_s8(bytes));
    const int16x8_t last = vmovl_high_s8(bytes);
    lanes[0] = vmovl_s16(vget_low_s16(first));
    lanes[1] = vmovl_high_s16(first);
    lanes[2] = vmovl_s16(vget_low_s16(last));
    lanes[3] = vmovl_high_s16(last);
  }
  // As bytes.
  static Ints expand_bytes(ByteMask bits, const std::byte*& from) {
    const uint8x8_t low = expand_eight(bits & 0xFF, from);
    return vreinterpretq_s32_u8(vcombine_u8(low, expand_eight(bits >> 8, from)));
  }
  // With bytes of `others`, from 0 to 127 and no larger than any of these, elsewhere.
  static Ints expand_over(Ints others, ByteMask bits, const std::byte*& from) {
    const int8x16_t bytes = vreinterpretq_s8_s32(expand_bytes(bits, from));
    return vreinterpretq_s32_s8(vmaxq_s8(vreinterpretq_s8_s32(others), bytes));
  }

  // One bit per lane, the first in the lowest: signs of floats, and a float with those
  // that a bitmap has from `index` on.
  static std::uint32_t signs(Floats a) { return bits_of(vcltzq_s32(bits(a))); }
  static Floats with_signs(const std::byte* bitmap, std::size_t index, Floats magnitude) {
    const auto four = static_cast<std::uint32_t>(bitmap[index / 8]) >> index % 8;
    const Ints at_top = vshlq_s32(set_int(static_cast<std::int32_t>(four)), Ints{31, 30, 29, 28});
    return floats(bits(magnitude) | (at_top & set_int(INT32_MIN)));
  }
  // table[code & 3]
  static Floats look_up(Floats table, Ints codes) {
    const Ints first = (codes & set_int(3)) * set_int(0x04040404) + set_int(0x03020100);
    return vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(table), vreinterpretq_u8_s32(first)));
  }
  static Floats set_table(float a, float b, float c, float d) { return Floats{a, b, c, d}; }

  // 16-bit words of two vectors.
  template <int kBits>
  static Ints shift_words_left(Ints a) {
    return vreinterpretq_s32_u16(vshlq_n_u16(vreinterpretq_u16_s32(a), kBits));
  }
  template <int kBits>
  static Ints shift_words_right(Ints a) {
    return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(a), kBits));
  }
  static Ints high_bytes(Ints a, Ints b) {
    return vreinterpretq_s32_u8(vuzp2q_u8(vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(b)));
  }
  static Ints low_bytes(Ints a, Ints b) {
    return vreinterpretq_s32_u8(vuzp1q_u8(vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(b)));
  }
  static void join_bytes(Ints low, Ints high, Ints& a, Ints& b) {
    a = vreinterpretq_s32_u8(vzip1q_u8(vreinterpretq_u8_s32(low), vreinterpretq_u8_s32(high)));
    b = vreinterpretq_s32_u8(vzip2q_u8(vreinterpretq_u8_s32(low), vreinterpretq_u8_s32(high)));
  }
  static ByteMask nonzero_words(Ints a, Ints b) {
    const uint16x8_t first = vreinterpretq_u16_s32(a);
    const uint16x8_t last = vreinterpretq_u16_s32(b);
    return bits_of_bytes(vcombine_u8(vmovn_u16(vtstq_u16(first, first)), vmovn_u16(vtstq_u16(last, last))));
  }
  // Words of the 32-bit lanes of two vectors, and back to memory.
  static Ints upper_halves(Ints a, Ints b) {
    return vreinterpretq_s32_u16(vuzp2q_u16(vreinterpretq_u16_s32(a), vreinterpretq_u16_s32(b)));
  }
  static Ints lower_halves(Ints a, Ints b) {
    return vreinterpretq_s32_u16(vuzp1q_u16(vreinterpretq_u16_s32(a), vreinterpretq_u16_s32(b)));
  }
  static void store_joined(std::byte* to, Ints upper, Ints lower) {
    const uint16x8_t low = vreinterpretq_u16_s32(lower);
    const uint16x8_t high = vreinterpretq_u16_s32(upper);
    store_ints(to, vreinterpretq_s32_u16(vzip1q_u16(low, high)));
    store_ints(to + kBytes, vreinterpretq_s32_u16(vzip2q_u16(low, high)));
  }

  // Philox: 64-bit lanes of which the low halves count.
  static constexpr std::size_t kWideLanes = 2;
  static Ints set_wide(std::uint64_t a) { return vreinterpretq_s32_u64(vdupq_n_u64(a)); }
  static Ints count_from(std::uint64_t first) { return vreinterpretq_s32_u64(uint64x2_t{first, first + 1}); }
  static Ints multiply(Ints a, Ints b) {
    return vreinterpretq_s32_u64(
        vmull_u32(vmovn_u64(vreinterpretq_u64_s32(a)), vmovn_u64(vreinterpretq_u64_s32(b))));
  }
  static Ints high_half(Ints a) { return vreinterpretq_s32_u64(vshrq_n_u64(vreinterpretq_u64_s32(a), 32)); }
  static Ints exclusive_or(Ints a, Ints b, Ints c) { return a ^ b ^ c; }
  // Writes a, b, c, d of each lane, one lane after the other.
  static void store_quads(std::byte* to, Ints a, Ints b, Ints c, Ints d) {
    const int32x4_t ab = vtrn1q_s32(a, b);
    const int32x4_t cd = vtrn1q_s32(c, d);
    store_ints(to, vcombine_s32(vget_low_s32(ab), vget_low_s32(cd)));
    store_ints(to + kBytes, vcombine_s32(vget_high_s32(ab), vget_high_s32(cd)));
  }

 private:
  static uint8x16_t load_packed(const std::byte* from) {
    return vld1q_u8(reinterpret_cast<const std::uint8_t*>(from));
  }
  static void store_packed(std::byte* to, uint8x16_t a) { vst1q_u8(reinterpret_cast<std::uint8_t*>(to), a); }
  static uint8x8_t load_half_packed(const std::byte* from) {
    return vld1_u8(reinterpret_cast<const std::uint8_t*>(from));
  }
  static void store_half_packed(std::byte* to, uint8x8_t a) {
    vst1_u8(reinterpret_cast<std::uint8_t*>(to), a);
  }
  static uint8x16_t bit_of_byte() { return vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201)); }
  static ByteMask bits_of_bytes(uint8x16_t mask) {
    const uint8x16_t ones = vandq_u8(mask, bit_of_byte());
    return static_cast<ByteMask>(vaddv_u8(vget_low_u8(ones)) | vaddv_u8(vget_high_u8(ones)) << 8);
  }
  static void compact_eight(unsigned bits, uint8x8_t bytes, std::byte*& to) {
    store_half_packed(to, vtbl1_u8(bytes, vld1_u8(kCompact.order[bits])));
    to += __builtin_popcount(bits);
  }
  static uint8x8_t expand_eight(unsigned bits, const std::byte*& from) {
    const uint8x8_t packed = load_half_packed(from);
    from += __builtin_popcount(bits);
    return vtbl1_u8(packed, vld1_u8(kExpand.order[bits]));
  }
};

}  // namespace
}  // namespace geocomm::codec
