// Vectors of eight floats, and the storage formats that they come from, as sum_loops.h and feedback_loops.h
// take them. For files that are compiled for AVX2: all is local to the file, since its code must not be
// shared with others.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace geocomm::collective {
namespace {

struct Floats {
  using Vector = __m256;
  static constexpr std::size_t kLanes = 8;

  static Vector load_floats(const float* from) { return _mm256_loadu_ps(from); }
  static void store_floats(Vector floats, float* to) { _mm256_storeu_ps(to, floats); }
  static Vector broadcast(float value) { return _mm256_set1_ps(value); }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector divide(Vector a, Vector b) { return _mm256_div_ps(a, b); }
  static Vector nan_or(Vector a, Vector b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  }

  // A vector's squares, in the first `kDoubles` of these.
  using Doubles = __m256d;
  static constexpr std::size_t kDoubles = 2;
  static Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static void add_squares(Doubles* sums, Vector floats) {
    const Doubles low = _mm256_cvtps_pd(_mm256_castps256_ps128(floats));
    const Doubles high = _mm256_cvtps_pd(_mm256_extractf128_ps(floats, 1));
    sums[0] = _mm256_add_pd(sums[0], _mm256_mul_pd(low, low));
    sums[1] = _mm256_add_pd(sums[1], _mm256_mul_pd(high, high));
  }
  static Doubles load_doubles(const double* from) { return _mm256_loadu_pd(from); }
  static void store_doubles(Doubles doubles, double* to) { _mm256_storeu_pd(to, doubles); }
};

__m128i load_words(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

void store_words(__m128i words, std::byte* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), words);
}

struct Float32 : Floats {
  static constexpr std::size_t kBytes = 4;
  template <typename Family>
  static const auto& member(const Family& family) {
    return family.float32;
  }
  static Vector load(const std::byte* from) { return _mm256_loadu_ps(reinterpret_cast<const float*>(from)); }
  static Vector load_exact(const std::byte* from) { return load(from); }
  static void store(Vector floats, std::byte* to) { _mm256_storeu_ps(reinterpret_cast<float*>(to), floats); }
};

struct Float16 : Floats {
  static constexpr std::size_t kBytes = 2;
  template <typename Family>
  static const auto& member(const Family& family) {
    return family.float16;
  }
  static Vector load(const std::byte* from) { return _mm256_cvtph_ps(load_words(from)); }
  static Vector load_exact(const std::byte* from) {
    const __m128i halves = load_words(from);
    const __m256i words = _mm256_cvtepu16_epi32(halves);
    const __m256i magnitude = _mm256_and_si256(words, _mm256_set1_epi32(0x7FFF));
    const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(words, magnitude), 16);
    const __m256i infinity = _mm256_set1_epi32(0x7F800000);
    const __m256i nan = _mm256_or_si256(_mm256_or_si256(sign, infinity), _mm256_slli_epi32(magnitude, 13));
    const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7C00));
    return _mm256_blendv_ps(_mm256_cvtph_ps(halves), _mm256_castsi256_ps(nan), _mm256_castsi256_ps(is_nan));
  }
  static void store(Vector floats, std::byte* to) {
    store_words(_mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT), to);
  }
};

struct BFloat16 : Floats {
  static constexpr std::size_t kBytes = 2;
  template <typename Family>
  static const auto& member(const Family& family) {
    return family.bfloat16;
  }
  static Vector load(const std::byte* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_words(from)), 16));
  }
  static Vector load_exact(const std::byte* from) { return load(from); }
  static void store(Vector floats, std::byte* to) {
    const __m256i bits = _mm256_castps_si256(floats);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(floats, floats, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);
    store_words(_mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)), to);
  }
};

}  // namespace
}  // namespace geocomm::collective
