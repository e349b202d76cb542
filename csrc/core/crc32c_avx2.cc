#include <immintrin.h>

#include <cstring>

#include "core/crc32c_kernels.h"
#include "core/crc32c_polynomial.h"

namespace geocomm::core {
namespace {

// The crc32 instruction and the carry-less multiplier are different units, so both run at once, each on its
// part of a batch: first three chains for crc32 (three cycles of latency), then one part for four
// accumulators of 16 bytes that fold 64 bytes ahead. A step takes 64 bytes there and kWords words of each
// chain.
constexpr std::size_t kFold = 64;
constexpr std::size_t kWords = 6;

template <std::size_t Steps>
struct Batch {
  static constexpr std::size_t kChainBytes = Steps * kWords * 8;
  static constexpr std::size_t kFolded = Steps * kFold;
  static constexpr std::size_t kBytes = 3 * kChainBytes + kFolded;
};

std::uint64_t load64(const std::byte* from) {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

__m128i load128(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

template <std::uint64_t Bytes>
__m128i fold(__m128i accumulator, __m128i next) {
  constexpr auto kFirst = static_cast<long long>(crc32c_fold_factor_first(Bytes));
  constexpr auto kSecond = static_cast<long long>(crc32c_fold_factor_second(Bytes));
  const __m128i factors = _mm_set_epi64x(kSecond, kFirst);
  const __m128i first = _mm_clmulepi64_si128(accumulator, factors, 0x00);
  const __m128i second = _mm_clmulepi64_si128(accumulator, factors, 0x11);
  return _mm_xor_si128(_mm_xor_si128(first, second), next);
}

// To be reduced by _mm_crc32_u64.
template <std::uint64_t Bytes>
std::uint64_t shifted(std::uint64_t state) {
  constexpr auto kFactor = static_cast<long long>(crc32c_shift_factor(Bytes));
  const __m128i factor = _mm_cvtsi64_si128(kFactor);
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(state)), factor, 0);
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(product));
}

template <std::size_t Steps>
std::uint64_t update_batch(std::uint64_t state, const std::byte* data) {
  using S = Batch<Steps>;
  std::uint64_t chains[3] = {state, 0, 0};
  const std::byte* const folded = data + 3 * S::kChainBytes;
  __m128i accumulators[4];
  for (std::size_t j = 0; j < 4; ++j) accumulators[j] = load128(folded + 16 * j);
  for (std::size_t step = 0; step < Steps; ++step) {
    if (step > 0) {
      for (std::size_t j = 0; j < 4; ++j) {
        accumulators[j] = fold<kFold>(accumulators[j], load128(folded + step * kFold + 16 * j));
      }
    }
    const std::byte* const words = data + step * kWords * 8;
    for (std::size_t i = 0; i < kWords; ++i) {
      for (std::size_t chain = 0; chain < 3; ++chain) {
        chains[chain] = _mm_crc32_u64(chains[chain], load64(words + chain * S::kChainBytes + 8 * i));
      }
    }
  }
  __m128i sum = fold<16>(accumulators[0], accumulators[1]);
  sum = fold<16>(sum, accumulators[2]);
  sum = fold<16>(sum, accumulators[3]);
  const std::uint64_t ahead = shifted<2 * S::kChainBytes + S::kFolded>(chains[0]) ^
                              shifted<S::kChainBytes + S::kFolded>(chains[1]) ^
                              shifted<S::kFolded>(chains[2]);
  const std::uint64_t half = _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(sum)));
  const std::uint64_t last = _mm_crc32_u64(half, static_cast<std::uint64_t>(_mm_extract_epi64(sum, 1)));
  return _mm_crc32_u64(0, ahead) ^ last;
}

template <std::size_t Steps>
void update_batches(std::uint64_t& state, const std::byte*& data, std::size_t& size) {
  constexpr std::size_t kBytes = Batch<Steps>::kBytes;
  for (; size >= kBytes; data += kBytes, size -= kBytes) state = update_batch<Steps>(state, data);
}

std::uint32_t update_avx2(std::uint32_t initial, const std::byte* data, std::size_t size) {
  std::uint64_t state = initial;
  update_batches<64>(state, data, size);
  update_batches<8>(state, data, size);
  return Crc32cLoop::kScalar.update(static_cast<std::uint32_t>(state), data, size);
}

}  // namespace

constinit const Crc32cLoop Crc32cLoop::kAvx2{update_avx2};

}  // namespace geocomm::core
