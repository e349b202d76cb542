// The values of the chosen elements of a TopK frame, in each of the forms of codec::Values.
#pragma once

#include <cstddef>
#include <span>

#include "codec/spec/codec_spec.h"
#include "core/status.h"

namespace geocomm::codec {

// Worst case of encode_values(), in bytes. Cannot fail.
std::size_t values_bound(Values form, Entropy stage, std::size_t count);

// Writes to `dst`, which has room for values_bound(), and returns the size. `lost` (nullptr: not wanted)
// becomes value - decoded, 0 where that is NaN or Inf.
std::size_t encode_values(Values form, Entropy stage, const float* values, std::size_t count, float* lost,
                          std::byte* dst);

// CorruptData: `coded` is not exactly `count` values.
core::Status decode_values(Values form, Entropy stage, std::span<const std::byte> coded, std::size_t count,
                           float* values);

}  // namespace geocomm::codec
