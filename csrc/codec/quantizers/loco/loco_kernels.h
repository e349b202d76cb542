// The loops of Loco over the values that a chunk gave, one table per CPU level. loco_scalar.cc is the
// reference: the others give the same bytes, and take whole multiples of kLocoStep only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/quantizers/loco/loco_format.h"

namespace geocomm::codec {

inline constexpr std::size_t kLocoStep = 64;

// Which of the two magnitudes a value gets: the high one where t * sum >= squares, with t = |value| * down.
struct LocoRule {
  float down = 1;
  float sum = 0;      // of all t
  float squares = 0;  // of all t * t
};

// Sums of t, in the order of partial_sums.h, and members.
struct LocoParts {
  float low = 0;
  float high = 0;
  std::size_t high_count = 0;
};

struct LocoKernels {
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

// nullptr where this build lacks the level.
const LocoKernels* loco_kernels_scalar();
const LocoKernels* loco_kernels_avx2();
const LocoKernels* loco_kernels_avx512();

// Those of core::cpu_level() that take so many values.
const LocoKernels& loco_kernels(std::size_t count);

}  // namespace geocomm::codec
