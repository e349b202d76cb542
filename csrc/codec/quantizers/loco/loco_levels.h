// Values as a sign and one of two magnitudes, which they share: those of a chunk in Loco, of a block in TopK.
// What these codecs keep has no values near zero: two levels that are the means of its smaller and its larger
// values lose 0.5 % of its energy on Gaussian data, where the four levels that suit the whole distribution
// would lose 20 %.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/quantizers/loco/loco_format.h"

namespace geocomm::codec {

// From which magnitude on values are of the larger ones.
enum class LevelBound : std::uint8_t {
  Mean,   // of the magnitudes
  Energy  // the sum of the squares over the sum
};

// Writes codes (loco_code_bytes()) of at most kLocoMaxK values and returns their levels; {kRawScale, 0}, and
// codes of 0, where a value is not finite. `lost` (nullptr: not wanted) becomes value - decoded, 0 where the
// values are raw.
LocoLevels encode_levels(LevelBound bound, const float* values, std::size_t count, float* lost,
                         std::byte* codes);

}  // namespace geocomm::codec
