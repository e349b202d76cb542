// What has to hold for any frame, good or bad, in every decoder: see decode_everywhere().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/frames/frame.h"
#include "fuzz_target.h"

namespace geocomm::fuzz {

// How far frame and dst lie from aligned memory, in bytes.
struct Places {
  std::size_t frame = 0;
  std::size_t dst = 0;

  static Places of(std::uint8_t byte) { return {byte & 7u, byte >> 3 & 7u}; }
};

// What every CPU level made of the frame.
struct Decoded {
  core::StatusCode code = core::StatusCode::Ok;
  std::vector<std::byte> elements;  // decompress()
  std::vector<float> values;        // decompress_accumulate() with Assign; empty for dtypes without sums
};

// Decodes a frame that claims these elements (at most kMaxElements) to every sink at every CPU level, from
// and to memory of exactly the right size, and requires that
// - all levels agree on status and bytes, all sinks on the status, which is one that a frame may cause;
// - adding gives the sum of what was there and what Assign gives, or on error leaves dst alone;
// - decompress() gives the values of Assign, rounded, and no finite value becomes Inf;
// - a dst of the wrong size is refused.
Decoded decode_everywhere(Input frame, core::DType dtype, std::size_t elements, Places places);

}  // namespace geocomm::fuzz
