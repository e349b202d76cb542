#include "codec/quantizers/dead_zone/dead_zone_kernels.h"

#if defined(__AVX2__)

#include <immintrin.h>

#include "codec/simd/bitmap_tables.h"
#include "codec/simd/prefetch.h"
#include "codec/simd/vector_avx2.h"

namespace geocomm::codec {
namespace {

using core::DType;

// Eight elements as floats.
template <DType kType>
__m256 load8(const std::byte* base, std::size_t index) {
  if constexpr (kType == DType::Float32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(base + 4 * index));
  } else {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(base + 2 * index));
    if constexpr (kType == DType::Float16) return _mm256_cvtph_ps(bits);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
}

// Finite floats rounded to nearest even, never to Inf.
__m128i narrow_to_half(__m256 value) {
  const __m256 largest = _mm256_set1_ps(65504.0f);
  const __m256 lower = _mm256_set1_ps(-65504.0f);
  return _mm256_cvtps_ph(_mm256_max_ps(_mm256_min_ps(value, largest), lower), _MM_FROUND_TO_NEAREST_INT);
}
__m128i narrow_to_bfloat16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi32(INT32_MIN));
  // The largest that rounds to a finite one.
  const __m256i magnitude = _mm256_min_epu32(_mm256_xor_si256(bits, sign), _mm256_set1_epi32(0x7F7F7FFF));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(magnitude, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i upper = _mm256_srli_epi32(_mm256_or_si256(rounded, sign), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
}

template <Sink kSink>
void put8(std::byte* base, std::size_t index, __m256 value) {
  if constexpr (kSink == Sink::Float16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(base + 2 * index), narrow_to_half(value));
  } else if constexpr (kSink == Sink::BFloat16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(base + 2 * index), narrow_to_bfloat16(value));
  } else if constexpr (kSink == Sink::StreamedFloat32) {
    Avx2::stream(base + 4 * index, value);
  } else {
    auto* to = reinterpret_cast<float*>(base + 4 * index);
    if constexpr (kSink == Sink::AddToFloat32) value = _mm256_add_ps(_mm256_loadu_ps(to), value);
    _mm256_storeu_ps(to, value);
  }
}

__m256i magnitude_bits(__m256 value) {
  return _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(INT32_MAX));
}

std::uint32_t largest_of(__m256i value) {
  __m128i most = _mm_max_epu32(_mm256_castsi256_si128(value), _mm256_extracti128_si256(value, 1));
  most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4E));
  most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xB1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(most));
}

std::uint32_t peak(const std::byte* floats, std::size_t count) {
  __m256i most[4] = {};
  for (std::size_t i = 0; i < count; i += 32) {
    for (std::size_t part = 0; part < 4; ++part) {
      most[part] = _mm256_max_epu32(most[part], magnitude_bits(load8<DType::Float32>(floats, i + 8 * part)));
    }
  }
  return largest_of(_mm256_max_epu32(_mm256_max_epu32(most[0], most[1]), _mm256_max_epu32(most[2], most[3])));
}

template <DType kType, DType kResidual, bool kFeedback>
std::uint32_t load_as(const std::byte* src, const ErrorFeedback& feedback, std::size_t count, float* values) {
  const __m256 decay = _mm256_set1_ps(feedback.decay);
  __m256i most[2] = {};
  for (std::size_t i = 0; i < count; i += 16) {
    for (std::size_t part = 0; part < 2; ++part) {
      const std::size_t at = i + 8 * part;
      __m256 value = load8<kType>(src, at);
      if constexpr (kFeedback) {
        value = Avx2::add_residual(value, decay, load8<kResidual>(feedback.residual, at));
      }
      _mm256_storeu_ps(values + at, value);
      most[part] = _mm256_max_epu32(most[part], magnitude_bits(value));
    }
  }
  return largest_of(_mm256_max_epu32(most[0], most[1]));
}

template <DType kType>
std::uint32_t load_with(const std::byte* src, const ErrorFeedback& feedback, std::size_t count,
                        float* values) {
  if (feedback.residual == nullptr)
    return load_as<kType, DType::Float32, false>(src, feedback, count, values);
  if (feedback.dtype == DType::BFloat16) {
    return load_as<kType, DType::BFloat16, true>(src, feedback, count, values);
  }
  return load_as<kType, DType::Float32, true>(src, feedback, count, values);
}

std::uint32_t load(DType dtype, const std::byte* src, const ErrorFeedback& feedback, std::size_t count,
                   float* values) {
  if (dtype == DType::Float16) return load_with<DType::Float16>(src, feedback, count, values);
  if (dtype == DType::BFloat16) return load_with<DType::BFloat16>(src, feedback, count, values);
  return load_with<DType::Float32>(src, feedback, count, values);
}

// Half of the 128 sums at a time: they stay in registers.
float sum_of_squares(const std::byte* floats, std::size_t count, float factor) {
  const __m256 factors = _mm256_set1_ps(factor);
  __m256 sums[2][8] = {};
  for (std::size_t half = 0; half < 2; ++half) {
    __m256 running[8] = {};
    for (std::size_t i = 64 * half; i < count; i += 128) {
      for (std::size_t part = 0; part < 8; ++part) {
        const __m256 scaled = _mm256_mul_ps(load8<DType::Float32>(floats, i + 8 * part), factors);
        running[part] = _mm256_add_ps(running[part], _mm256_mul_ps(scaled, scaled));
      }
    }
    for (std::size_t part = 0; part < 8; ++part) sums[half][part] = running[part];
  }
  __m256* low = sums[0];
  for (std::size_t part = 0; part < 8; ++part) low[part] = _mm256_add_ps(low[part], sums[1][part]);
  for (std::size_t width = 4; width > 0; width /= 2) {
    for (std::size_t part = 0; part < width; ++part) low[part] = _mm256_add_ps(low[part], low[part + width]);
  }
  __m128 rest = _mm_add_ps(_mm256_castps256_ps128(low[0]), _mm256_extractf128_ps(low[0], 1));
  rest = _mm_add_ps(rest, _mm_movehl_ps(rest, rest));
  rest = _mm_add_ss(rest, _mm_shuffle_ps(rest, rest, 1));
  return _mm_cvtss_f32(rest);
}

// Eight codes; updates their residual.
template <DType kResidual, bool kFeedback>
__m256i quantize8(const std::byte* floats, std::size_t index, __m256 step, __m256 inverse,
                  std::byte* residual) {
  const __m256 value = load8<DType::Float32>(floats, index);
  const __m256 y = _mm256_mul_ps(value, inverse);
  const __m256 offset = _mm256_or_ps(_mm256_and_ps(y, _mm256_set1_ps(-0.0f)), _mm256_set1_ps(0.1f));
  const __m256i code = _mm256_cvtps_epi32(_mm256_sub_ps(y, offset));
  if constexpr (kFeedback) {
    const __m256 lost = _mm256_sub_ps(value, _mm256_mul_ps(_mm256_cvtepi32_ps(code), step));
    put8<kResidual == DType::BFloat16 ? Sink::BFloat16 : Sink::Float32>(residual, index, lost);
  }
  return code;
}

// Writes the bytes whose bits are set, and up to eight bytes after them.
std::byte* compact8(std::uint32_t bits, __m128i bytes, std::byte* to) {
  const __m128i order = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kCompact.order[bits]));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(bytes, order));
  return to + _mm_popcnt_u32(bits);
}

template <DType kResidual, bool kFeedback>
std::size_t quantize_as(const std::byte* floats, std::size_t count, const DeadZoneStep& step,
                        std::byte* residual, std::byte* bitmap, std::byte* codes) {
  const __m256 steps = _mm256_set1_ps(step.step);
  const __m256 inverse = _mm256_set1_ps(step.inverse);
  // Packing works in halves of 128 bits; this brings the fours back in order.
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  std::byte* end = codes;
  for (std::size_t i = 0; i < count; i += 32) {
    prefetch_ahead<128>(floats + 4 * i);
    __m256i code[4];
    for (std::size_t part = 0; part < 4; ++part) {
      code[part] = quantize8<kResidual, kFeedback>(floats, i + 8 * part, steps, inverse, residual);
    }
    const __m256i packed =
        _mm256_packs_epi16(_mm256_packs_epi32(code[0], code[1]), _mm256_packs_epi32(code[2], code[3]));
    const __m256i bytes = _mm256_permutevar8x32_epi32(packed, in_order);
    const auto zeros =
        static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256())));
    const std::uint32_t bits = ~zeros;
    __builtin_memcpy(bitmap + i / 8, &bits, sizeof(bits));
    const __m128i low = _mm256_castsi256_si128(bytes);
    const __m128i high = _mm256_extracti128_si256(bytes, 1);
    end = compact8(bits & 0xFF, low, end);
    end = compact8(bits >> 8 & 0xFF, _mm_unpackhi_epi64(low, low), end);
    end = compact8(bits >> 16 & 0xFF, high, end);
    end = compact8(bits >> 24, _mm_unpackhi_epi64(high, high), end);
  }
  return static_cast<std::size_t>(end - codes);
}

std::size_t quantize(const std::byte* floats, std::size_t count, const DeadZoneStep& step,
                     const ErrorFeedback& feedback, std::byte* bitmap, std::byte* codes) {
  if (feedback.residual == nullptr) {
    return quantize_as<DType::Float32, false>(floats, count, step, nullptr, bitmap, codes);
  }
  if (feedback.dtype == DType::BFloat16) {
    return quantize_as<DType::BFloat16, true>(floats, count, step, feedback.residual, bitmap, codes);
  }
  return quantize_as<DType::Float32, true>(floats, count, step, feedback.residual, bitmap, codes);
}

template <Sink kSink>
std::size_t dequantize_as(const std::byte* bitmap, const std::byte* codes, std::size_t count, float step,
                          std::byte* dst) {
  const __m256 steps = _mm256_set1_ps(step);
  const std::byte* next = codes;
  for (std::size_t i = 0; i < count; i += 32) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, bitmap + i / 8, sizeof(bits));
    for (std::size_t part = 0; part < 4; ++part, bits >>= 8) {
      const __m128i order = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kExpand.order[bits & 0xFF]));
      const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(next));
      next += _mm_popcnt_u32(bits & 0xFF);
      const __m256i code = _mm256_cvtepi8_epi32(_mm_shuffle_epi8(packed, order));
      put8<kSink>(dst, i + 8 * part, _mm256_mul_ps(_mm256_cvtepi32_ps(code), steps));
    }
  }
  return static_cast<std::size_t>(next - codes);
}

std::size_t dequantize(const std::byte* bitmap, const std::byte* codes, std::size_t count, float step,
                       Sink sink, std::byte* dst) {
  switch (sink) {
    case Sink::Float16:
      return dequantize_as<Sink::Float16>(bitmap, codes, count, step, dst);
    case Sink::BFloat16:
      return dequantize_as<Sink::BFloat16>(bitmap, codes, count, step, dst);
    case Sink::AddToFloat32:
      return dequantize_as<Sink::AddToFloat32>(bitmap, codes, count, step, dst);
    case Sink::StreamedFloat32:
      return dequantize_as<Sink::StreamedFloat32>(bitmap, codes, count, step, dst);
    case Sink::Float32:
      break;
  }
  return dequantize_as<Sink::Float32>(bitmap, codes, count, step, dst);
}

constexpr DeadZoneKernels kAvx2{peak, load, sum_of_squares, quantize, dequantize};

}  // namespace

const DeadZoneKernels* dead_zone_kernels_avx2() {
  return &kAvx2;
}

}  // namespace geocomm::codec

#else

namespace geocomm::codec {
const DeadZoneKernels* dead_zone_kernels_avx2() {
  return nullptr;
}
}  // namespace geocomm::codec

#endif
