// Vectors of sixteen floats, and the storage formats that they come from, as sum_loops.h and feedback_loops.h
// take them. For files that are compiled for AVX-512: all is local to the file, since its code must not be
// shared with others.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace geocomm::collective {
namespace {

struct Floats {
  using Vector = __m512;
  static constexpr std::size_t kLanes = 16;

  static Vector load_floats(const float* from) { return _mm512_loadu_ps(from); }
  static void store_floats(Vector floats, float* to) { _mm512_storeu_ps(to, floats); }
  static Vector broadcast(float value) { return _mm512_set1_ps(value); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static Vector nan_or(Vector a, Vector b) {
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
  }

  // A vector's squares, in the first `kDoubles` of these.
  using Doubles = __m512d;
  static constexpr std::size_t kDoubles = 2;
  static Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static void add_squares(Doubles* sums, Vector floats) {
    const Doubles low = _mm512_cvtps_pd(_mm512_castps512_ps256(floats));
    const Doubles high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(floats, 1));
    sums[0] = _mm512_add_pd(sums[0], _mm512_mul_pd(low, low));
    sums[1] = _mm512_add_pd(sums[1], _mm512_mul_pd(high, high));
  }
  static Doubles load_doubles(const double* from) { return _mm512_loadu_pd(from); }
  static void store_doubles(Doubles doubles, double* to) { _mm512_storeu_pd(to, doubles); }
};

__m256i load_words(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

void store_words(__m256i words, std::byte* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words);
}

struct Float32 : Floats {
  static constexpr std::size_t kBytes = 4;
  template <typename Family>
  static const auto& member(const Family& family) {
    return family.float32;
  }
  static Vector load(const std::byte* from) { return _mm512_loadu_ps(from); }
  static Vector load_exact(const std::byte* from) { return load(from); }
  static void store(Vector floats, std::byte* to) { _mm512_storeu_ps(to, floats); }
};

struct Float16 : Floats {
  static constexpr std::size_t kBytes = 2;
  template <typename Family>
  static const auto& member(const Family& family) {
    return family.float16;
  }
  static Vector load(const std::byte* from) { return _mm512_cvtph_ps(load_words(from)); }
  static Vector load_exact(const std::byte* from) {
    const __m256i halves = load_words(from);
    const __m512i words = _mm512_cvtepu16_epi32(halves);
    const __m512i magnitude = _mm512_and_si512(words, _mm512_set1_epi32(0x7FFF));
    const __m512i sign = _mm512_slli_epi32(_mm512_xor_si512(words, magnitude), 16);
    const __m512i infinity = _mm512_set1_epi32(0x7F800000);
    const __m512i nan = _mm512_or_si512(_mm512_or_si512(sign, infinity), _mm512_slli_epi32(magnitude, 13));
    const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7C00));
    return _mm512_mask_mov_ps(_mm512_cvtph_ps(halves), is_nan, _mm512_castsi512_ps(nan));
  }
  static void store(Vector floats, std::byte* to) {
    store_words(_mm512_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT), to);
  }
};

struct BFloat16 : Floats {
  static constexpr std::size_t kBytes = 2;
  template <typename Family>
  static const auto& member(const Family& family) {
    return family.bfloat16;
  }
  static Vector load(const std::byte* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_words(from)), 16));
  }
  static Vector load_exact(const std::byte* from) { return load(from); }
  static void store(Vector floats, std::byte* to) {
    const __m512i bits = _mm512_castps_si512(floats);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(floats, floats, _CMP_UNORD_Q);
    const __m512i words = _mm512_mask_or_epi32(rounded, is_nan, upper, _mm512_set1_epi32(0x40));
    store_words(_mm512_cvtepi32_epi16(words), to);
  }
};

}  // namespace
}  // namespace geocomm::collective
