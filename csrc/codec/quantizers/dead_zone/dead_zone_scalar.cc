#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "codec/quantizers/dead_zone/dead_zone_kernels.h"
#include "core/cpu.h"
#include "core/half.h"

namespace geocomm::codec {
namespace {

using core::DType;

std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & ~core::kFloatSignBit;
}

std::uint32_t peak(const std::byte* floats, std::size_t count) {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    most = std::max(most, magnitude_bits(load_element<DType::Float32>(floats, i)));
  }
  return most;
}

std::uint32_t load(DType dtype, const std::byte* src, const ErrorFeedback& feedback, std::size_t count,
                   float* values) {
  return with_compressible(dtype, [&]<DType kType>() {
    return with_residual(residual_kind(feedback), [&]<Residual kResidual>() {
      std::uint32_t most = 0;
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = load_value<kType, kResidual>(src, feedback.residual, feedback.decay, i);
        most = std::max(most, magnitude_bits(values[i]));
      }
      return most;
    });
  });
}

float sum_of_squares(const std::byte* floats, std::size_t count, float factor) {
  constexpr std::size_t kSums = 128;
  std::array<float, kSums> sums{};
  for (std::size_t first = 0; first < count; first += kDeadZoneUnit) {
    float* half = sums.data() + first % kSums;
    for (std::size_t i = 0; i < kDeadZoneUnit; ++i) {
      const float scaled = load_element<DType::Float32>(floats, first + i) * factor;
      half[i] += scaled * scaled;
    }
  }
  for (std::size_t width = kSums / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

std::int32_t code_of(float value, float inverse) {
  // 1.5 * 2^23: adding it rounds to an integer, nearest even, that stands in the low bits.
  constexpr float kMagic = 12582912.0f;
  const float y = value * inverse;
  return std::bit_cast<std::int32_t>((y - std::copysign(0.1f, y)) + kMagic) -
         std::bit_cast<std::int32_t>(kMagic);
}

template <Residual kResidual>
std::size_t quantize_as(const std::byte* __restrict floats, std::size_t count, const DeadZoneStep& step,
                        std::byte* __restrict residual, std::byte* __restrict bitmap,
                        std::byte* __restrict codes) {
  std::array<std::int8_t, kDeadZoneUnit> unit;
  std::byte* end = codes;
  for (std::size_t first = 0; first < count; first += kDeadZoneUnit) {
    for (std::size_t i = 0; i < kDeadZoneUnit; ++i) {
      const float value = load_element<DType::Float32>(floats, first + i);
      const std::int32_t code = code_of(value, step.inverse);
      unit[i] = static_cast<std::int8_t>(code);
      store_residual<kResidual>(residual, first + i, value, static_cast<float>(code) * step.step);
    }
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < kDeadZoneUnit; ++i) {
      const bool is_set = unit[i] != 0;
      *end = static_cast<std::byte>(unit[i]);
      end += is_set ? 1 : 0;
      bits |= std::uint64_t{is_set} << i;
    }
    std::memcpy(bitmap + first / 8, &bits, sizeof(bits));
  }
  return static_cast<std::size_t>(end - codes);
}

std::size_t quantize(const std::byte* floats, std::size_t count, const DeadZoneStep& step,
                     const ErrorFeedback& feedback, std::byte* bitmap, std::byte* codes) {
  return with_residual(residual_kind(feedback), [&]<Residual kResidual>() {
    return quantize_as<kResidual>(floats, count, step, feedback.residual, bitmap, codes);
  });
}

template <Sink kSink>
std::size_t dequantize_as(const std::byte* __restrict bitmap, const std::byte* __restrict codes,
                          std::size_t count, float step, std::byte* __restrict dst) {
  std::array<std::int8_t, kDeadZoneUnit> unit;
  const std::byte* next = codes;
  for (std::size_t first = 0; first < count; first += kDeadZoneUnit) {
    const auto bits = load_unaligned<std::uint64_t>(bitmap + first / 8);
    for (std::size_t i = 0; i < kDeadZoneUnit; ++i) {
      const bool is_set = (bits >> i & 1u) != 0;
      unit[i] = static_cast<std::int8_t>(static_cast<int>(*next) & -static_cast<int>(is_set));
      next += is_set ? 1 : 0;
    }
    for (std::size_t i = 0; i < kDeadZoneUnit; ++i) {
      put<kSink>(dst, first + i, static_cast<float>(unit[i]) * step);
    }
  }
  return static_cast<std::size_t>(next - codes);
}

std::size_t dequantize(const std::byte* bitmap, const std::byte* codes, std::size_t count, float step,
                       Sink sink, std::byte* dst) {
  return with_sink(sink, [&]<Sink kSink>() { return dequantize_as<kSink>(bitmap, codes, count, step, dst); });
}

constexpr DeadZoneKernels kScalar{peak, load, sum_of_squares, quantize, dequantize};

const DeadZoneKernels& or_scalar(const DeadZoneKernels* kernels) {
  return kernels != nullptr ? *kernels : kScalar;
}

}  // namespace

const DeadZoneKernels& dead_zone_kernels() {
  switch (core::cpu_level()) {
    case core::CpuLevel::Avx512:
      return or_scalar(dead_zone_kernels_avx512());
    case core::CpuLevel::Avx2:
      return or_scalar(dead_zone_kernels_avx2());
    case core::CpuLevel::Scalar:
      break;
  }
  return kScalar;
}

}  // namespace geocomm::codec
