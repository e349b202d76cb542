// Error feedback of a reduction: a caller who knows its data from operation to operation has a codec of its
// own, and keeps what the codec lost for the next time (codec::ErrorFeedback). A rank encodes every element
// of its lanes once: in broadcast-all its site's, in owner-reduces its site's for others and the sum where it
// is the owner. So one residual per element serves both, also when owners change: it is added the next time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec_spec.h"
#include "core/dtype.h"

namespace geocomm::collective {

// What a rank encoded in one operation, in units of the sum (before Avg divides).
struct FeedbackReport {
  double input_square = 0;       // squared L2 norm of elements + decay * residual; 0 without residuals
  double residual_square = 0;    // of the new residual
  std::uint64_t wire_bytes = 0;  // frames that this rank made, once for each rank they were sent to
};

// A reduction's codec in place of the policy's, for operations of at least ExchangeConfig::min_compress_bytes
// (below that: None). An exact codec lets the residual go: it is added to what is sent, and what is left is
// what the dtype cannot hold.
struct CallerCodec {
  codec::CodecSpec codec;
  float decay = 1.0f;                // of the old residual; finite
  FeedbackReport* report = nullptr;  // filled in by a reduce() that succeeds
};

// Sum of (element + decay * residual)². Not finite where an element is not. `dtype` is Float32, Float16 or
// BFloat16; as many elements as residuals.
double square_of_input(core::DType dtype, std::span<const std::byte> elements,
                       std::span<const float> residual, float decay);
double square_of(std::span<const float> values);
// The same of elements of Float32, Float16 or BFloat16. Not finite where an element is not, and only there.
double square_of(core::DType dtype, std::span<const std::byte> elements);

}  // namespace geocomm::collective
