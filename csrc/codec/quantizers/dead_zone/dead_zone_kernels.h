// The codes of DeadZone on one block, at three CPU levels; the scalar one is the reference that the others
// equal bit for bit. What comes before, v and its sum of squares, is BlockKernels' work (block_kernels.h).
//
// All of it is IEEE float, each operation rounded to nearest even, subnormals kept, nothing fused:
//   y       = v * inverse;  q = rint(y - copysign(0.1, y))
//   decoded = q * step, exact: 7 + 8 significant bits;  residual = v - decoded
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/frames/codec.h"
#include "codec/frames/elements.h"

namespace geocomm::codec {

struct DeadZoneStep {
  float step = 0;     // a bf16
  float inverse = 0;  // 1 / step
};

// Every `count` is a multiple of kDeadZoneUnit, so a caller pads what is shorter with zeros, which give sums
// and bits of zero. Pointers have any alignment but where a type says otherwise; nothing overlaps.
inline constexpr std::size_t kDeadZoneUnit = 64;

struct DeadZoneKernels {
  static const DeadZoneKernels kScalar, kAvx2, kAvx512, kNeon;

  // Writes the bitmap of what is not 0 (count / 8 bytes, LSB first) and those codes, in order, and returns
  // how many they are; up to 64 bytes after the last are written as well. Updates the residual.
  // Precondition: no |q| above 127.
  using Quantize = std::size_t (*)(const std::byte* floats, std::size_t count, const DeadZoneStep& step,
                                   std::byte* residual, std::byte* bitmap, std::byte* codes);
  Quantize quantize[kResidualKinds];
  // The way back: takes count / 8 bytes of bitmap and returns how many codes it took; up to 64 bytes after
  // the last are read as well.
  using Dequantize = std::size_t (*)(const std::byte* bitmap, const std::byte* codes, std::size_t count,
                                     float step, std::byte* dst);
  Dequantize dequantize[kSinks];

  // BitPlanes. Here `count` is any, and what the last unit has behind it is looked at or written as well.
  // Writes the bits of codes below 0 and of magnitudes above 1. The codes, of which those behind the last are
  // 1, become these magnitudes, closed up; returns how many they are.
  std::size_t (*split)(std::byte* codes, std::size_t count, std::byte* signs, std::byte* bits);
  // The same of magnitudes above `least`; those behind the last are 0.
  std::size_t (*peel)(std::byte* magnitudes, std::size_t count, unsigned least, std::byte* bits);
  // The way back: the next of `larger` where there are bits, `least` elsewhere. There are no bits behind the
  // last; up to 64 bytes behind the last of `larger` are read as well.
  void (*fill)(const std::byte* larger, const std::byte* bits, std::size_t count, unsigned least,
               std::byte* magnitudes);
  void (*join)(const std::byte* larger, const std::byte* signs, const std::byte* bits, std::size_t count,
               std::byte* codes);
};

}  // namespace geocomm::codec
