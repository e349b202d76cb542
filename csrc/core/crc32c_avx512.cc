#include <immintrin.h>

#include "core/crc32c_kernels.h"
#include "core/crc32c_polynomial.h"

namespace geocomm::core {
namespace {

// Four accumulators of 64 bytes, each four of 16, fold 256 bytes ahead.
constexpr std::size_t kStep = 256;

__m512i load512(const std::byte* from) {
  return _mm512_loadu_si512(from);
}

// Each 16 bytes times their own pair of factors, plus `next`.
__m512i fold(__m512i accumulator, __m512i factors, __m512i next) {
  const __m512i first = _mm512_clmulepi64_epi128(accumulator, factors, 0x00);
  const __m512i second = _mm512_clmulepi64_epi128(accumulator, factors, 0x11);
  return _mm512_ternarylogic_epi64(first, second, next, 0x96);  // exclusive or
}

template <std::uint64_t Bytes>
__m128i factors_for() {
  constexpr auto kFirst = static_cast<long long>(crc32c_fold_factor_first(Bytes));
  constexpr auto kSecond = static_cast<long long>(crc32c_fold_factor_second(Bytes));
  return _mm_set_epi64x(kSecond, kFirst);
}

template <std::uint64_t Bytes>
__m512i fold_all(__m512i accumulator, __m512i next) {
  return fold(accumulator, _mm512_broadcast_i32x4(factors_for<Bytes>()), next);
}

// The state after the 64 bytes of `sum`.
std::uint32_t reduce(__m512i sum) {
  __m512i factors = _mm512_castsi128_si512(factors_for<48>());
  factors = _mm512_inserti32x4(factors, factors_for<32>(), 1);
  factors = _mm512_inserti32x4(factors, factors_for<16>(), 2);
  factors = _mm512_inserti32x4(factors, _mm_setzero_si128(), 3);
  const __m512i last_only = _mm512_maskz_mov_epi64(0xC0, sum);
  const __m512i aligned = fold(sum, factors, last_only);
  const __m256i two =
      _mm256_xor_si256(_mm512_castsi512_si256(aligned), _mm512_extracti64x4_epi64(aligned, 1));
  const __m128i one = _mm_xor_si128(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
  const std::uint64_t half = _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(one)));
  return static_cast<std::uint32_t>(
      _mm_crc32_u64(half, static_cast<std::uint64_t>(_mm_extract_epi64(one, 1))));
}

std::uint32_t update_avx512(std::uint32_t state, const std::byte* data, std::size_t size) {
  if (size >= kStep) {
    __m512i accumulators[4];
    for (std::size_t j = 0; j < 4; ++j) accumulators[j] = load512(data + 64 * j);
    const __m512i start = _mm512_castsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state)));
    accumulators[0] = _mm512_xor_si512(accumulators[0], _mm512_maskz_mov_epi64(0x01, start));
    for (data += kStep, size -= kStep; size >= kStep; data += kStep, size -= kStep) {
      for (std::size_t j = 0; j < 4; ++j) {
        accumulators[j] = fold_all<kStep>(accumulators[j], load512(data + 64 * j));
      }
    }
    __m512i sum = fold_all<64>(accumulators[0], accumulators[1]);
    sum = fold_all<64>(sum, accumulators[2]);
    sum = fold_all<64>(sum, accumulators[3]);
    for (; size >= 64; data += 64, size -= 64) sum = fold_all<64>(sum, load512(data));
    state = reduce(sum);
  }
  return Crc32cLoop::kScalar.update(state, data, size);
}

}  // namespace

constinit const Crc32cLoop Crc32cLoop::kAvx512{update_avx512};

}  // namespace geocomm::core
