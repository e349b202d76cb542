#include <immintrin.h>

#include "codec/quantizers/top_k/select_kernels.h"
#include "codec/simd/vector_avx512.h"

namespace geocomm::codec {
namespace {

using core::DType;

constexpr std::size_t kLanes = 16;
constexpr std::size_t kAhead = 1024;  // elements

__mmask16 first_lanes(std::size_t count) {
  return count >= kLanes ? static_cast<__mmask16>(0xFFFF)
                         : static_cast<__mmask16>((1u << static_cast<unsigned>(count)) - 1u);
}

__m512 widen_bfloat16(const std::byte* from, __mmask16 lanes) {
  const __m256i bits = _mm256_maskz_loadu_epi16(lanes, from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

template <DType kType>
__m512 load_input(const std::byte* src, std::size_t index, __mmask16 lanes) {
  if constexpr (kType == DType::Float16) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, src + 2 * index));
  } else if constexpr (kType == DType::BFloat16) {
    return widen_bfloat16(src + 2 * index, lanes);
  } else {
    return _mm512_maskz_loadu_ps(lanes, src + 4 * index);
  }
}

template <Residual kResidual>
__m512 load_residual(const std::byte* residual, std::size_t index, __mmask16 lanes) {
  if constexpr (kResidual == Residual::BFloat16) {
    return widen_bfloat16(residual + 2 * index, lanes);
  } else {
    return _mm512_maskz_loadu_ps(lanes, residual + 4 * index);
  }
}

__m512i magnitudes(__m512i bits) {
  return _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
}

// Finite values, rounded to nearest even; the largest ones saturate.
__m256i narrow_bfloat16(__m512i bits) {
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(magnitudes(bits), _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
  const __m512i capped = _mm512_min_epi32(rounded, _mm512_set1_epi32(0x7F7F));
  const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x8000));
  return _mm512_cvtepi32_epi16(_mm512_or_si512(capped, sign));
}

template <Residual kResidual>
void store_finite(std::byte* residual, std::size_t index, __m512i bits, __mmask16 finite, __mmask16 lanes) {
  const __m512i kept = _mm512_maskz_mov_epi32(finite, bits);
  if constexpr (kResidual == Residual::BFloat16) {
    _mm256_mask_storeu_epi16(residual + 2 * index, lanes, narrow_bfloat16(kept));
  } else {
    _mm512_mask_storeu_epi32(residual + 4 * index, lanes, kept);
  }
}

// A page ahead, which the machine's own prefetcher does not cross. Behind the end it is no access.
void prefetch(const std::byte* from) {
  _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T0);
}

// No branches: one that waits for memory would hold up the loads behind it.
template <DType kType, Residual kResidual>
std::size_t collect(const CollectInput& input, float* chunk, float* values, std::uint32_t* places) {
  constexpr std::size_t kSourceBytes = kType == DType::Float32 ? 4 : 2;
  constexpr std::size_t kResidualBytes = kResidual == Residual::BFloat16 ? 2 : 4;
  const __m512 decay = _mm512_set1_ps(input.decay);
  const __m512i above = _mm512_set1_epi32(input.above);
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  std::size_t found = 0;
  for (std::size_t i = 0; i < input.count; i += kLanes) {
    const __mmask16 lanes = first_lanes(input.count - i);
    prefetch(input.src + kSourceBytes * (i + kAhead));
    if constexpr (kResidual != Residual::None) prefetch(input.residual + kResidualBytes * (i + kAhead));
    __m512 value = load_input<kType>(input.src, i, lanes);
    if constexpr (kResidual != Residual::None) {
      value = Avx512::add_residual(value, decay, load_residual<kResidual>(input.residual, i, lanes));
    }
    _mm512_storeu_ps(chunk + i, value);
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i magnitude = magnitudes(bits);
    if constexpr (kResidual != Residual::None) {
      const __mmask16 finite = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x7F800000));
      store_finite<kResidual>(input.residual, i, bits, finite, lanes);
    }
    const __mmask16 chosen = _mm512_mask_cmpgt_epi32_mask(lanes, magnitude, above);
    const __m512i place = _mm512_add_epi32(
        lane, _mm512_set1_epi32(static_cast<int>(input.first_place + static_cast<std::uint32_t>(i))));
    _mm512_storeu_ps(values + found, _mm512_maskz_compress_ps(chosen, value));
    _mm512_storeu_si512(places + found, _mm512_maskz_compress_epi32(chosen, place));
    found += static_cast<std::size_t>(_mm_popcnt_u32(chosen));
  }
  return found;
}

std::size_t count_above(const float* values, std::size_t count, std::int32_t magnitude) {
  const __m512i limit = _mm512_set1_epi32(magnitude);
  std::size_t above = 0;
  for (std::size_t i = 0; i < count; i += kLanes) {
    const __mmask16 lanes = first_lanes(count - i);
    const __m512i bits = _mm512_maskz_loadu_epi32(lanes, values + i);
    above += static_cast<std::size_t>(
        _mm_popcnt_u32(_mm512_mask_cmpgt_epi32_mask(lanes, magnitudes(bits), limit)));
  }
  return above;
}

std::byte* write_gap(std::uint32_t rest, std::byte* to) {
  for (; rest >= 255; rest -= 255) *to++ = std::byte{255};
  *to++ = static_cast<std::byte>(rest);
  return to;
}

// Sixteen at a time where none takes more than a byte.
std::size_t write_gaps(const std::uint32_t* places, std::size_t count, std::uint32_t previous,
                       std::byte* gaps) {
  if (count == 0) return 0;
  std::byte* to = write_gap(places[0] - previous - 1, gaps);
  std::size_t i = 1;
  for (; i + kLanes <= count; i += kLanes) {
    const __m512i gap = _mm512_sub_epi32(_mm512_loadu_si512(places + i), _mm512_loadu_si512(places + i - 1));
    if (_mm512_cmpgt_epu32_mask(gap, _mm512_set1_epi32(255)) == 0) {
      const __m512i rest = _mm512_sub_epi32(gap, _mm512_set1_epi32(1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(rest));
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

constinit const SelectKernels SelectKernels::kAvx512 = kLoops;

}  // namespace geocomm::codec
