// The arithmetic of DeadZone on one block, at three CPU levels; the scalar one is the reference that the
// others equal bit for bit.
//
// All of it is IEEE float, each operation rounded to nearest even, subnormals kept, nothing fused:
//   v       = input + decay * residual, or the input
//   sum     = 128 partial sums of (v * factor)^2, v[e] in sum e mod 128 in order of e; then s[j] += s[j + h]
//             for h = 64, 32, ..., 1
//   y       = v * inverse;  q = rint(y - copysign(0.1, y))
//   decoded = q * step, exact: 7 + 8 significant bits;  residual = v - decoded
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/frames/codec.h"
#include "codec/frames/elements.h"
#include "core/dtype.h"

namespace geocomm::codec {

struct DeadZoneStep {
  float step = 0;     // a bf16
  float inverse = 0;  // 1 / step
};

// Every `count` is a multiple of kDeadZoneUnit, so a caller pads what is shorter with zeros, which give sums
// and bits of zero. Pointers have any alignment but where a type says otherwise; nothing overlaps.
inline constexpr std::size_t kDeadZoneUnit = 64;

struct DeadZoneKernels {
  // Largest magnitude of these floats, as a bit pattern: core::kFloatInfBits or more if one is Inf or NaN.
  std::uint32_t (*peak)(const std::byte* floats, std::size_t count);
  // values = v; returns their peak. NaN may change its payload.
  std::uint32_t (*load)(core::DType dtype, const std::byte* src, const ErrorFeedback& feedback,
                        std::size_t count, float* values);
  // `factor`: a power of two.
  float (*sum_of_squares)(const std::byte* floats, std::size_t count, float factor);
  // Writes the bitmap of what is not 0 (count / 8 bytes, LSB first) and those codes, in order, and returns
  // how many they are; up to 64 bytes after the last are written as well. Updates the residual.
  // Precondition: no |q| above 127.
  std::size_t (*quantize)(const std::byte* floats, std::size_t count, const DeadZoneStep& step,
                          const ErrorFeedback& feedback, std::byte* bitmap, std::byte* codes);
  // The way back: takes count / 8 bytes of bitmap and returns how many codes it took; up to 64 bytes after
  // the last are read as well.
  std::size_t (*dequantize)(const std::byte* bitmap, const std::byte* codes, std::size_t count, float step,
                            Sink sink, std::byte* dst);
};

// Those of core::cpu_level().
const DeadZoneKernels& dead_zone_kernels();

// nullptr where this build lacks them.
const DeadZoneKernels* dead_zone_kernels_avx2();
const DeadZoneKernels* dead_zone_kernels_avx512();

}  // namespace geocomm::codec
