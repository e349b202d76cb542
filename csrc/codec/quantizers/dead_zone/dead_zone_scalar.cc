#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "codec/quantizers/dead_zone/dead_zone_kernels.h"
#include "core/half.h"

namespace geocomm::codec {
namespace {

std::int32_t code_of(float value, float inverse) {
  // 1.5 * 2^23: adding it rounds to an integer, nearest even, that stands in the low bits.
  constexpr float kMagic = 12582912.0f;
  const float y = value * inverse;
  return std::bit_cast<std::int32_t>((y - std::copysign(0.1f, y)) + kMagic) -
         std::bit_cast<std::int32_t>(kMagic);
}

template <Residual kResidual>
std::size_t quantize(const std::byte* __restrict floats, std::size_t count, const DeadZoneStep& step,
                     std::byte* __restrict residual, std::byte* __restrict bitmap,
                     std::byte* __restrict codes) {
  std::array<std::int8_t, kDeadZoneUnit> unit;
  std::byte* end = codes;
  for (std::size_t first = 0; first < count; first += kDeadZoneUnit) {
    for (std::size_t i = 0; i < kDeadZoneUnit; ++i) {
      const float value = load_element<core::DType::Float32>(floats, first + i);
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

template <Sink kSink>
std::size_t dequantize(const std::byte* __restrict bitmap, const std::byte* __restrict codes,
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

// Calls `step(i)` for what is there, and writes the bits that it returns.
template <typename Step>
void with_bits(std::size_t count, std::byte* bits, Step step) {
  for (std::size_t first = 0; first < count; first += 8) {
    unsigned eight = 0;
    for (std::size_t i = first; i < std::min(first + 8, count); ++i)
      eight |= unsigned{step(i)} << (i - first);
    bits[first / 8] = static_cast<std::byte>(eight);
  }
}

bool bit_of(const std::byte* bits, std::size_t i) {
  return (bits[i / 8] >> (i % 8) & std::byte{1}) != std::byte{0};
}

std::size_t peel(std::byte* magnitudes, std::size_t count, unsigned least, std::byte* bits) {
  std::byte* end = magnitudes;
  with_bits(count, bits, [&](std::size_t i) {
    const bool is_larger = std::to_integer<unsigned>(magnitudes[i]) > least;
    *end = magnitudes[i];
    end += is_larger ? 1 : 0;
    return is_larger;
  });
  return static_cast<std::size_t>(end - magnitudes);
}

std::size_t split(std::byte* codes, std::size_t count, std::byte* signs, std::byte* bits) {
  with_bits(count, signs, [&](std::size_t i) {
    const int code = std::to_integer<std::int8_t>(codes[i]);
    codes[i] = static_cast<std::byte>(std::abs(code));
    return code < 0;
  });
  return peel(codes, count, 1, bits);
}

void fill(const std::byte* larger, const std::byte* bits, std::size_t count, unsigned least,
          std::byte* magnitudes) {
  for (std::size_t i = 0; i < count; ++i) {
    magnitudes[i] = bit_of(bits, i) ? *larger++ : static_cast<std::byte>(least);
  }
}

void join(const std::byte* larger, const std::byte* signs, const std::byte* bits, std::size_t count,
          std::byte* codes) {
  fill(larger, bits, count, 1, codes);
  for (std::size_t i = 0; i < count; ++i) {
    if (bit_of(signs, i)) codes[i] = static_cast<std::byte>(-std::to_integer<std::int8_t>(codes[i]));
  }
}

constexpr DeadZoneKernels kLoops{
    {quantize<Residual::None>, quantize<Residual::Float32>, quantize<Residual::BFloat16>},
    {dequantize<Sink::Float32>, dequantize<Sink::Float16>, dequantize<Sink::BFloat16>,
     dequantize<Sink::AddToFloat32>, dequantize<Sink::Float32>},
    split,
    peel,
    fill,
    join};

}  // namespace

constinit const DeadZoneKernels DeadZoneKernels::kScalar = kLoops;

}  // namespace geocomm::codec
