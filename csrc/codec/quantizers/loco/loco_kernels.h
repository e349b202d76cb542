// The loops of Loco over the values that a chunk gave, one table per CPU level. loco_scalar.cc is the
// reference: the others give the same bytes, and take whole multiples of kLocoStep only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/quantizers/loco/loco_format.h"
#include "core/cpu.h"

namespace geocomm::codec {

inline constexpr std::size_t kLocoStep = 64;

// Which of the two magnitudes a value gets: the high one where t * sum >= squares, with t = |value| * down.
struct LocoRule {
  float down = 1;
  float sum = 0;      // LevelBound::Energy: of all t; Mean: 1
  float squares = 0;  // of all t * t; the mean of all t
};

// Sums of t, in the order of partial_sums.h, and members.
struct LocoParts {
  float low = 0;
  float high = 0;
  std::size_t high_count = 0;
};

struct LocoKernels {
  static const LocoKernels kScalar, kAvx2, kAvx512;

  // Finite values to packed codes: bit 0 the magnitude, bit 1 the sign.
  LocoParts (*quantize)(const float* values, std::size_t count, const LocoRule& rule, std::byte* codes);
  // value - what its code decodes to.
  void (*subtract)(const float* values, const std::byte* codes, std::size_t count, const LocoLevels& levels,
                   float* lost);
  void (*decode)(const std::byte* codes, std::size_t count, const LocoLevels& levels, float* values);
  // Places from `first` on, less `first`, ascending. May write 7 bytes behind them.
  void (*pack_places)(const std::uint32_t* places, const LocoPlaces& shape, std::uint32_t first,
                      std::byte* packed);
  // False: not `count` places, these do not ascend or lie outside of the chunk, or a bit behind them is not
  // 0. May read 7 bytes behind them.
  bool (*unpack_places)(const std::byte* packed, const LocoPlaces& shape, std::uint32_t* places);
};

// Of the level in use, but for what they do not take.
inline const LocoKernels& loco_kernels_for(std::size_t count) {
  return count % kLocoStep == 0 ? core::at_cpu_level<LocoKernels>() : LocoKernels::kScalar;
}

}  // namespace geocomm::codec
