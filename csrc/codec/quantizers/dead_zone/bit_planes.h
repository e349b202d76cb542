// The codes of BitPlanes, those that are not 0: a bit for the sign of each, and a bit for each step that its
// magnitude goes on. docs/spec/codecs.md has the planes.
#pragma once

#include <cstddef>
#include <span>

#include "codec/spec/codec_spec.h"
#include "core/status.h"

namespace geocomm::codec {

// Most bytes that so many codes take.
std::size_t bit_planes_bound(Entropy stage, std::size_t codes);

// Writes them to `dst` and returns how many bytes they took. `codes` are from -127 to 127 and not 0; they are
// overwritten, and 64 bytes behind them as well.
std::size_t encode_bit_planes(Entropy stage, std::span<std::byte> codes, std::byte* dst);

// Takes them off the front of `coded`, to all of `codes` and up to 64 bytes behind. CorruptData: they are not
// there.
core::Status take_bit_planes(Entropy stage, std::span<const std::byte>& coded, std::span<std::byte> codes);

}  // namespace geocomm::codec
