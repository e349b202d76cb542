// The inputs of the targets of deltas.
#pragma once

#include <cstdint>

namespace geocomm::fuzz {

// decode_delta: what the header says; then the payload. The target writes the checksums, and the base is of
// zeros. encode_delta: the elements, and how the base differs; then a Fill, and what it takes.
struct DeltaHead {
  std::uint8_t dtype;
  std::uint8_t elements_high;  // ElementCount
  std::uint16_t elements_low;
  std::uint32_t changes;    // encode_delta: one in so many elements differs; 0: the base is of zeros
  std::uint32_t gap_bytes;  // encode_delta: by these bits of its lowest byte
};
static_assert(sizeof(DeltaHead) == 12);

}  // namespace geocomm::fuzz
