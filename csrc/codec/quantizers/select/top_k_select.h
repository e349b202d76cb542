// Which elements of a frame TopK and Loco take.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codec/frames/payload_codec.h"
#include "codec/spec/codec_spec.h"

namespace geocomm::codec {

// Of how many elements `k` of every 4096 are: k of a whole chunk, rounded up.
constexpr std::size_t share_of(std::size_t k, std::size_t elements) {
  return (k * elements + kTopKChunk - 1) / kTopKChunk;
}

// Elements that a whole chunk gives.
inline std::size_t chunk_limit(const CodecSpec& spec) {
  return std::clamp<std::size_t>(spec.k, 1, kTopKChunk / 2);
}
inline std::size_t frame_limit(const CodecSpec& spec, std::size_t elements) {
  return share_of(chunk_limit(spec), elements);
}

// In order of their places, in the calling thread's scratch memory (ScratchUse::Values and Places).
struct Chosen {
  const float* values = nullptr;  // NaN: kCanonicalNan
  float* lost = nullptr;          // room for as many floats, for what their coding loses
  const std::uint32_t* places = nullptr;
  std::size_t count = 0;
};
inline constexpr std::int32_t kCanonicalNan = 0x7FC00000;

// The largest k of each chunk, of equal magnitudes the first. The residual becomes v, 0 where that is not
// finite; the places of chosen elements are still to be set.
Chosen choose_elements(const FrameInput& input);

// Sets them, to `chosen.lost`. Nothing without a residual.
void keep_lost(const ErrorFeedback& feedback, const Chosen& chosen);

// A bound that leaves exactly the `k` largest magnitudes of `values` (1 <= k < count): all above it, and the
// first `equal` of those that equal it. Magnitudes are at most kCanonicalNan.
struct Cut {
  std::int32_t above = 0;
  std::size_t equal = 0;
};
// `floor`: a magnitude that more than k are above; -1 always is one.
Cut cut_largest(const float* values, std::size_t count, std::size_t k, std::int32_t floor);

}  // namespace geocomm::codec
