#include "codec/quantizers/dead_zone/dead_zone_kernels.h"

#if defined(__AVX512VBMI2__)

#include <immintrin.h>

#include "codec/simd/prefetch.h"
#include "codec/simd/vector_avx512.h"

namespace geocomm::codec {
namespace {

using core::DType;

// Sixteen elements as floats.
template <DType kType>
__m512 load16(const std::byte* base, std::size_t index) {
  if constexpr (kType == DType::Float32) {
    return _mm512_loadu_ps(base + 4 * index);
  } else {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(base + 2 * index));
    if constexpr (kType == DType::Float16) return _mm512_cvtph_ps(bits);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
}

// Finite floats rounded to nearest even, never to Inf.
__m256i narrow_to_half(__m512 value) {
  const __m512 largest = _mm512_set1_ps(65504.0f);
  const __m512 lower = _mm512_set1_ps(-65504.0f);
  return _mm512_cvtps_ph(_mm512_max_ps(_mm512_min_ps(value, largest), lower), _MM_FROUND_TO_NEAREST_INT);
}
__m256i narrow_to_bfloat16(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MIN));
  // The largest that rounds to a finite one.
  const __m512i magnitude = _mm512_min_epu32(_mm512_xor_si512(bits, sign), _mm512_set1_epi32(0x7F7F7FFF));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(magnitude, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_or_si512(rounded, sign), 16));
}

template <Sink kSink>
void put16(std::byte* base, std::size_t index, __m512 value) {
  if constexpr (kSink == Sink::Float16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(base + 2 * index), narrow_to_half(value));
  } else if constexpr (kSink == Sink::BFloat16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(base + 2 * index), narrow_to_bfloat16(value));
  } else if constexpr (kSink == Sink::StreamedFloat32) {
    Avx512::stream(base + 4 * index, value);
  } else {
    std::byte* to = base + 4 * index;
    if constexpr (kSink == Sink::AddToFloat32) value = _mm512_add_ps(_mm512_loadu_ps(to), value);
    _mm512_storeu_ps(to, value);
  }
}

__m512i magnitude_bits(__m512 value) {
  return _mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32(INT32_MAX));
}

std::uint32_t peak(const std::byte* floats, std::size_t count) {
  __m512i most[4] = {};
  for (std::size_t i = 0; i < count; i += 64) {
    for (std::size_t part = 0; part < 4; ++part) {
      most[part] =
          _mm512_max_epu32(most[part], magnitude_bits(load16<DType::Float32>(floats, i + 16 * part)));
    }
  }
  return _mm512_reduce_max_epu32(
      _mm512_max_epu32(_mm512_max_epu32(most[0], most[1]), _mm512_max_epu32(most[2], most[3])));
}

template <DType kType, DType kResidual, bool kFeedback>
std::uint32_t load_as(const std::byte* src, const ErrorFeedback& feedback, std::size_t count, float* values) {
  const __m512 decay = _mm512_set1_ps(feedback.decay);
  __m512i most[2] = {};
  for (std::size_t i = 0; i < count; i += 32) {
    for (std::size_t part = 0; part < 2; ++part) {
      const std::size_t at = i + 16 * part;
      __m512 value = load16<kType>(src, at);
      if constexpr (kFeedback) {
        value = Avx512::add_residual(value, decay, load16<kResidual>(feedback.residual, at));
      }
      _mm512_storeu_ps(values + at, value);
      most[part] = _mm512_max_epu32(most[part], magnitude_bits(value));
    }
  }
  return _mm512_reduce_max_epu32(_mm512_max_epu32(most[0], most[1]));
}

template <DType kType>
std::uint32_t load_with(const std::byte* src, const ErrorFeedback& feedback, std::size_t count,
                        float* values) {
  if (feedback.residual == nullptr) {
    return load_as<kType, DType::Float32, false>(src, feedback, count, values);
  }
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

// Adds the squares of sixteen.
__m512 add_squares(__m512 sum, const std::byte* floats, std::size_t index, __m512 factors) {
  const __m512 scaled = _mm512_mul_ps(load16<DType::Float32>(floats, index), factors);
  return _mm512_add_ps(sum, _mm512_mul_ps(scaled, scaled));
}

float sum_of_squares(const std::byte* floats, std::size_t count, float factor) {
  const __m512 factors = _mm512_set1_ps(factor);
  __m512 sums[8] = {};  // 16 of the 128 each
  std::size_t i = 0;
  for (; i + 128 <= count; i += 128) {
    for (std::size_t part = 0; part < 8; ++part) {
      sums[part] = add_squares(sums[part], floats, i + 16 * part, factors);
    }
  }
  if (i < count) {
    for (std::size_t part = 0; part < 4; ++part) {
      sums[part] = add_squares(sums[part], floats, i + 16 * part, factors);
    }
  }
  for (std::size_t width = 4; width > 0; width /= 2) {
    for (std::size_t part = 0; part < width; ++part) {
      sums[part] = _mm512_add_ps(sums[part], sums[part + width]);
    }
  }
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sums[0]), _mm512_extractf32x8_ps(sums[0], 1));
  __m128 rest = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  rest = _mm_add_ps(rest, _mm_movehl_ps(rest, rest));
  rest = _mm_add_ss(rest, _mm_shuffle_ps(rest, rest, 1));
  return _mm_cvtss_f32(rest);
}

// Sixteen codes; updates their residual.
template <DType kResidual, bool kFeedback>
__m128i quantize16(const std::byte* floats, std::size_t index, __m512 step, __m512 inverse,
                   std::byte* residual) {
  const __m512 value = load16<DType::Float32>(floats, index);
  const __m512 y = _mm512_mul_ps(value, inverse);
  const __m512 offset = _mm512_or_ps(_mm512_and_ps(y, _mm512_set1_ps(-0.0f)), _mm512_set1_ps(0.1f));
  const __m512i code = _mm512_cvtps_epi32(_mm512_sub_ps(y, offset));
  if constexpr (kFeedback) {
    const __m512 lost = _mm512_sub_ps(value, _mm512_mul_ps(_mm512_cvtepi32_ps(code), step));
    put16<kResidual == DType::BFloat16 ? Sink::BFloat16 : Sink::Float32>(residual, index, lost);
  }
  return _mm512_cvtepi32_epi8(code);
}

// The bytes whose bits are set, closed up; what follows them means nothing. The form that keeps bytes, not
// the one that zeroes them: Bochs, which the tests run on where there is no AVX-512, gets that wrong for 64
// bits.
__m512i compact(std::uint64_t bits, __m512i bytes) {
  return _mm512_mask_compress_epi8(bytes, _cvtu64_mask64(bits), bytes);
}

template <DType kResidual, bool kFeedback>
std::size_t quantize_as(const std::byte* floats, std::size_t count, const DeadZoneStep& step,
                        std::byte* residual, std::byte* bitmap, std::byte* codes) {
  const __m512 steps = _mm512_set1_ps(step.step);
  const __m512 inverse = _mm512_set1_ps(step.inverse);
  std::byte* end = codes;
  for (std::size_t i = 0; i < count; i += 64) {
    prefetch_ahead<256>(floats + 4 * i);
    __m512i bytes =
        _mm512_castsi128_si512(quantize16<kResidual, kFeedback>(floats, i, steps, inverse, residual));
    bytes = _mm512_inserti32x4(
        bytes, (quantize16<kResidual, kFeedback>(floats, i + 16, steps, inverse, residual)), 1);
    bytes = _mm512_inserti32x4(
        bytes, (quantize16<kResidual, kFeedback>(floats, i + 32, steps, inverse, residual)), 2);
    bytes = _mm512_inserti32x4(
        bytes, (quantize16<kResidual, kFeedback>(floats, i + 48, steps, inverse, residual)), 3);
    const std::uint64_t bits = _cvtmask64_u64(_mm512_test_epi8_mask(bytes, bytes));
    __builtin_memcpy(bitmap + i / 8, &bits, sizeof(bits));
    _mm512_storeu_si512(end, compact(bits, bytes));
    end += _mm_popcnt_u64(bits);
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

// The next bytes, spread out to where bits are set. The load stays an instruction of its own: Bochs, which
// the tests run on where there is no AVX-512, gets an expansion from memory wrong.
__m512i expand(std::uint64_t bits, const std::byte* from) {
  __m512i bytes = _mm512_loadu_si512(from);
  asm("" : "+v"(bytes));
  return _mm512_maskz_expand_epi8(_cvtu64_mask64(bits), bytes);
}

template <Sink kSink>
std::size_t dequantize_as(const std::byte* bitmap, const std::byte* codes, std::size_t count, float step,
                          std::byte* dst) {
  const __m512 steps = _mm512_set1_ps(step);
  const std::byte* next = codes;
  for (std::size_t i = 0; i < count; i += 64) {
    std::uint64_t bits;
    __builtin_memcpy(&bits, bitmap + i / 8, sizeof(bits));
    const __m512i bytes = expand(bits, next);
    next += _mm_popcnt_u64(bits);
    const __m128i quarters[4] = {_mm512_castsi512_si128(bytes), _mm512_extracti32x4_epi32(bytes, 1),
                                 _mm512_extracti32x4_epi32(bytes, 2), _mm512_extracti32x4_epi32(bytes, 3)};
    for (std::size_t part = 0; part < 4; ++part) {
      const __m512 code = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(quarters[part]));
      put16<kSink>(dst, i + 16 * part, _mm512_mul_ps(code, steps));
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

constexpr DeadZoneKernels kAvx512{peak, load, sum_of_squares, quantize, dequantize};

}  // namespace

const DeadZoneKernels* dead_zone_kernels_avx512() {
  return &kAvx512;
}

}  // namespace geocomm::codec

#else

namespace geocomm::codec {
const DeadZoneKernels* dead_zone_kernels_avx512() {
  return nullptr;
}
}  // namespace geocomm::codec

#endif
