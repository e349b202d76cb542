// Values::Bit2 of TopK: of each value its sign and which of its block's two magnitudes (loco_levels.h).
// docs/spec/codecs.md has the layout and the arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/status.h"

namespace geocomm::codec {

inline constexpr std::size_t kTwoLevelBlock = 256;

std::size_t two_level_bound(std::size_t count);

// Writes to `dst`, which has room for two_level_bound(), and returns the size. `lost` (nullptr: not wanted)
// becomes value - decoded, 0 where that is NaN or Inf.
std::size_t encode_two_level(const float* values, std::size_t count, float* lost, std::byte* dst);

// CorruptData: `coded` is not exactly `count` values.
core::Status decode_two_level(std::span<const std::byte> coded, std::size_t count, float* values);

}  // namespace geocomm::codec
