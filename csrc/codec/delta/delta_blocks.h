// The payload of one frame of a delta: the blocks' forms and the planes that they fill. delta.h has the frame
// around it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec {

// What the header holds of a payload, since nothing in it tells.
struct DeltaCounts {
  std::uint32_t changes = 0;
  std::uint32_t gap_bytes = 0;
};

// Worst cases for frames of so many words (delta_words.h). Cannot fail.
std::size_t delta_payload_bound(core::DType dtype, std::size_t words);
std::size_t most_gap_bytes(std::size_t words);

struct DeltaPayload {
  DeltaCounts counts;
  std::size_t bytes = 0;
};
// `base` and `values` hold `words` words at any alignment, `dst` has room for delta_payload_bound().
DeltaPayload encode_delta(core::DType dtype, const std::byte* base, const std::byte* values,
                          std::size_t words, std::byte* dst);

// Changes the base, in `values`, to what was encoded. CorruptData: `values` may then be anything.
core::Status decode_delta(core::DType dtype, std::span<const std::byte> payload, const DeltaCounts& counts,
                          std::size_t words, std::byte* values);

}  // namespace geocomm::codec
