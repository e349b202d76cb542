#include <immintrin.h>

#include <cstring>

#include "codec/quantizers/top_k/select_kernels.h"
#include "codec/simd/vector_avx2.h"

namespace geocomm::codec {
namespace {

using core::DType;

constexpr std::size_t kLanes = 8;
constexpr std::uint32_t kGroup = 64;    // elements whose fate fits into one word
constexpr std::uint32_t kAhead = 1024;  // elements

__m256 widen_bfloat16(const std::byte* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

template <DType kType>
__m256 load_input(const std::byte* src, std::size_t index) {
  if constexpr (kType == DType::Float16) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 2 * index)));
  } else if constexpr (kType == DType::BFloat16) {
    return widen_bfloat16(src + 2 * index);
  } else {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(src + 4 * index));
  }
}

template <Residual kResidual>
__m256 load_residual(const std::byte* residual, std::size_t index) {
  if constexpr (kResidual == Residual::BFloat16) {
    return widen_bfloat16(residual + 2 * index);
  } else {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(residual + 4 * index));
  }
}

__m256i magnitudes(__m256i bits) {
  return _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
}

// Finite values, rounded to nearest even; the largest ones saturate.
__m128i narrow_bfloat16(__m256i bits) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(magnitudes(bits), _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
  const __m256i capped = _mm256_min_epi32(rounded, _mm256_set1_epi32(0x7F7F));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x8000));
  const __m256i halves = _mm256_or_si256(capped, sign);
  return _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

template <Residual kResidual>
void store_finite(std::byte* residual, std::size_t index, __m256i bits, __m256i not_finite) {
  const __m256i kept = _mm256_andnot_si256(not_finite, bits);
  if constexpr (kResidual == Residual::BFloat16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(residual + 2 * index), narrow_bfloat16(kept));
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(residual + 4 * index), kept);
  }
}

// One group of elements: v to `chunk` and to the residual. Returns which lie above.
template <DType kType, Residual kResidual>
std::uint64_t load_group(const std::byte* src, std::byte* residual, __m256 decay, __m256i above,
                         float* chunk) {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < kGroup; i += kLanes) {
    __m256 value = load_input<kType>(src, i);
    if constexpr (kResidual != Residual::None) {
      value = Avx2::add_residual(value, decay, load_residual<kResidual>(residual, i));
    }
    _mm256_storeu_ps(chunk + i, value);
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i magnitude = magnitudes(bits);
    if constexpr (kResidual != Residual::None) {
      store_finite<kResidual>(residual, i, bits,
                              _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F7FFFFF)));
    }
    const __m256i is_above = _mm256_cmpgt_epi32(magnitude, above);
    mask |= static_cast<std::uint64_t>(_mm256_movemask_ps(_mm256_castsi256_ps(is_above))) << i;
  }
  return mask;
}

constexpr std::size_t residual_bytes(Residual residual) {
  return residual == Residual::None ? 0 : residual == Residual::BFloat16 ? 2 : 4;
}

// A page ahead, which the machine's own prefetcher does not cross. Behind the end it is no access.
template <std::size_t kElementBytes>
void prefetch_group(const std::byte* from) {
  if constexpr (kElementBytes > 0) {
    for (std::size_t at = 0; at < kElementBytes * kGroup; at += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(from + kElementBytes * kAhead + at), _MM_HINT_T0);
    }
  }
}

// A chunk is loaded and compared without a branch, then searched: a branch that waits for memory would hold
// up the loads behind it. At the usual density a word has one or two, which are taken without a branch.
std::size_t extract(const std::uint64_t* masks, std::size_t words, const float* chunk,
                    std::uint32_t first_place, float* values, std::uint32_t* places) {
  std::size_t found = 0;
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t mask = masks[word];
    std::size_t at = found;
    found += static_cast<std::size_t>(_mm_popcnt_u64(mask));
    do {
      for (int unrolled = 0; unrolled < 2; ++unrolled, ++at) {
        const auto bit = static_cast<std::uint32_t>(_tzcnt_u64(mask)) % kGroup;  // 0 where none is left
        values[at] = chunk[kGroup * word + bit];
        places[at] = first_place + kGroup * static_cast<std::uint32_t>(word) + bit;
        mask = _blsr_u64(mask);
      }
    } while (mask != 0);
  }
  return found;
}

template <DType kType, Residual kResidual>
std::size_t collect(const CollectInput& input, float* chunk, float* values, std::uint32_t* places) {
  constexpr std::size_t kSourceBytes = kType == DType::Float32 ? 4 : 2;
  constexpr std::size_t kResidualBytes = residual_bytes(kResidual);
  const __m256 decay = _mm256_set1_ps(input.decay);
  const __m256i above = _mm256_set1_epi32(input.above);
  std::uint64_t masks[kTopKChunk / kGroup];
  std::size_t words = 0;
  std::size_t i = 0;
  for (; i + kGroup <= input.count; i += kGroup) {
    prefetch_group<kSourceBytes>(input.src + kSourceBytes * i);
    prefetch_group<kResidualBytes>(input.residual + kResidualBytes * i);
    masks[words++] = load_group<kType, kResidual>(
        input.src + kSourceBytes * i, input.residual + kResidualBytes * i, decay, above, chunk + i);
  }
  if (const std::size_t rest = input.count - i; rest > 0) {
    alignas(32) std::byte src[kGroup * 4] = {};
    alignas(32) std::byte residual[kGroup * 4] = {};
    std::memcpy(src, input.src + kSourceBytes * i, kSourceBytes * rest);
    if constexpr (kResidual != Residual::None) {
      std::memcpy(residual, input.residual + kResidualBytes * i, kResidualBytes * rest);
    }
    masks[words++] = _bzhi_u64(load_group<kType, kResidual>(src, residual, decay, above, chunk + i),
                               static_cast<std::uint32_t>(rest));
    if constexpr (kResidual != Residual::None) {
      std::memcpy(input.residual + kResidualBytes * i, residual, kResidualBytes * rest);
    }
  }
  return extract(masks, words, chunk, input.first_place, values, places);
}

std::size_t count_above(const float* values, std::size_t count, std::int32_t magnitude) {
  const __m256i limit = _mm256_set1_epi32(magnitude);
  __m256i sum = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + i));
    sum = _mm256_sub_epi32(sum, _mm256_cmpgt_epi32(magnitudes(bits), limit));
  }
  if (const std::size_t rest = count - i; rest > 0) {
    alignas(32) float last[kLanes] = {};
    std::memcpy(last, values + i, rest * sizeof(float));
    const __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(last));
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i is_there = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(rest)), lane);
    sum = _mm256_sub_epi32(sum, _mm256_and_si256(is_there, _mm256_cmpgt_epi32(magnitudes(bits), limit)));
  }
  __m128i folded = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  folded = _mm_add_epi32(folded, _mm_shuffle_epi32(folded, 0x4E));
  folded = _mm_add_epi32(folded, _mm_shuffle_epi32(folded, 0xB1));
  return static_cast<std::size_t>(_mm_cvtsi128_si32(folded));
}

std::byte* write_gap(std::uint32_t rest, std::byte* to) {
  for (; rest >= 255; rest -= 255) *to++ = std::byte{255};
  *to++ = static_cast<std::byte>(rest);
  return to;
}

// Eight at a time where none takes more than a byte.
std::size_t write_gaps(const std::uint32_t* places, std::size_t count, std::uint32_t previous,
                       std::byte* gaps) {
  if (count == 0) return 0;
  std::byte* to = write_gap(places[0] - previous - 1, gaps);
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i over = _mm256_set1_epi32(~255);
  std::size_t i = 1;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256i here = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(places + i));
    const __m256i before = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(places + i - 1));
    const __m256i gap = _mm256_sub_epi32(here, before);  // 1 to 255 fit
    if (_mm256_testz_si256(gap, over) != 0) {
      const __m256i rest = _mm256_sub_epi32(gap, one);
      const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(rest), _mm256_extracti128_si256(rest, 1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
      to += kLanes;
    } else {
      for (std::size_t j = i; j < i + kLanes; ++j) to = write_gap(places[j] - places[j - 1] - 1, to);
    }
  }
  for (; i < count; ++i) to = write_gap(places[i] - places[i - 1] - 1, to);
  return static_cast<std::size_t>(to - gaps);
}

constexpr SelectKernels kLoops{
    {{collect<DType::Float32, Residual::None>, collect<DType::Float32, Residual::Float32>,
      collect<DType::Float32, Residual::BFloat16>},
     {collect<DType::Float16, Residual::None>, collect<DType::Float16, Residual::Float32>,
      collect<DType::Float16, Residual::BFloat16>},
     {collect<DType::BFloat16, Residual::None>, collect<DType::BFloat16, Residual::Float32>,
      collect<DType::BFloat16, Residual::BFloat16>}},
    count_above,
    write_gaps};

}  // namespace

constinit const SelectKernels SelectKernels::kAvx2 = kLoops;

}  // namespace geocomm::codec
