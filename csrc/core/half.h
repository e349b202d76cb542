// IEEE half and bfloat16 to float and back, on bit patterns, without branches, so that loops over them
// vectorize and every target gives the same bits. Widening is exact. Narrowing rounds to nearest even; NaN
// stays NaN (quiet, upper payload bits kept), Inf stays Inf, subnormals are kept. Needs the default rounding
// mode.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace geocomm::core {

inline constexpr std::uint32_t kFloatSignBit = 0x80000000;
inline constexpr std::uint32_t kFloatInfBits = 0x7F800000;

inline bool is_finite_bits(std::uint32_t float_bits) {
  return (float_bits & ~kFloatSignBit) < kFloatInfBits;
}

// Bitwise: a conditional expression would let the compiler move a float operation into one branch, and a loop
// with such a branch does not vectorize.
inline std::uint32_t select_bits(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// The result of an operation on a and b. Where it is NaN and they are not (Inf - Inf, 0 * Inf), processors
// differ: x86-64 makes a negative NaN and arm64 a positive one. Here it is negative, so that sites of both
// hold the same bits.
template <typename T>
T of_invalid(T result, [[maybe_unused]] T a, [[maybe_unused]] T b) {
#if defined(__x86_64__)
  return result;
#else
  return (result != result) & (a == a) & (b == b) ? std::copysign(result, T{-1}) : result;
#endif
}

inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t shifted = (half & 0x7FFFu) << 13;
  // Subnormal: m * 2^-24 is (2^-14 + m * 2^-24) - 2^-14. No float subnormal arises on the way.
  const float subnormal = std::bit_cast<float>(shifted + 0x38800000u) - std::bit_cast<float>(0x38800000u);
  const std::uint32_t normal = shifted + 0x38000000u;  // exponent bias 15 -> 127
  const std::uint32_t special = shifted | kFloatInfBits;
  std::uint32_t magnitude =
      select_bits(shifted < (1u << 23), std::bit_cast<std::uint32_t>(subnormal), normal);
  magnitude = select_bits(shifted >= (0x7C00u << 13), special, magnitude);
  return std::bit_cast<float>(sign | magnitude);
}

inline std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & ~kFloatSignBit;
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14: adding 0.5 leaves the sum with an ulp of 2^-24, so the adder rounds to a half's subnormal.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u;
  const std::uint32_t nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  std::uint32_t half = select_bits(magnitude < 0x38800000u, subnormal, normal);
  half = select_bits(magnitude >= 0x477FF000u, 0x7C00u, half);  // 65520 and above round to Inf
  half = select_bits(magnitude > kFloatInfBits, nan, half);
  return static_cast<std::uint16_t>(sign | half);
}

inline float bfloat16_to_float(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

inline std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>(select_bits((bits & ~kFloatSignBit) > kFloatInfBits, nan, rounded));
}

// As float_to_half() and float_to_bfloat16(), but a finite value beyond the range becomes the largest finite
// one.
inline std::uint16_t float_to_half_saturated(float value) {
  const std::uint16_t half = float_to_half(value);
  const bool overflowed = (half & 0x7FFFu) == 0x7C00u && is_finite_bits(std::bit_cast<std::uint32_t>(value));
  return static_cast<std::uint16_t>(half - (overflowed ? 1u : 0u));
}

inline std::uint16_t float_to_bfloat16_saturated(float value) {
  const std::uint16_t rounded = float_to_bfloat16(value);
  const bool overflowed =
      (rounded & 0x7FFFu) == 0x7F80u && is_finite_bits(std::bit_cast<std::uint32_t>(value));
  return static_cast<std::uint16_t>(rounded - (overflowed ? 1u : 0u));
}

}  // namespace geocomm::core
