// Words of 32 bits to planes of bytes and back (those of 16: cast_kernels.h), at three CPU levels; the scalar
// one is the reference that the others equal bit for bit.
//
// A word of 16 bits, rotated left by one, has exponent bits in its high byte, and mantissa and sign in its
// low one. A word of 32 bits is such a word above a lower half, which is often zero.
#pragma once

#include <cstddef>

namespace geocomm::codec {

// Every `count` is a multiple of kLosslessUnit, so a caller pads what is shorter. Pointers have any
// alignment; nothing overlaps.
inline constexpr std::size_t kLosslessUnit = 64;

// Lower halves of words as two planes. With a bitmap (LSB first) the planes hold those of the words whose
// bits are set, in order, and the others are zero; without one, all; without planes, all are zero.
struct LowerHalves {
  const std::byte* bitmap = nullptr;
  const std::byte* high = nullptr;
  const std::byte* low = nullptr;
};

struct LosslessKernels {
  static const LosslessKernels kScalar, kAvx2, kAvx512, kNeon;

  // The upper halves of words of 32 bits, split as CastKernels does it, and a bitmap of the lower halves that
  // are not zero. Returns how many these are.
  std::size_t (*split32)(const std::byte* src, std::size_t count, std::byte* high, std::byte* low,
                         std::byte* bitmap);
  // The bytes of the lower halves whose bits are set (bitmap nullptr: of all). Returns how many these are; up
  // to 64 bytes after the last are written as well.
  std::size_t (*split_lower)(const std::byte* src, const std::byte* bitmap, std::size_t count,
                             std::byte* high, std::byte* low);
  // Returns how many lower halves it took; up to 64 bytes after the last are read as well.
  std::size_t (*merge32)(const std::byte* high, const std::byte* low, const LowerHalves& lower,
                         std::size_t count, std::byte* dst);
};

}  // namespace geocomm::codec
