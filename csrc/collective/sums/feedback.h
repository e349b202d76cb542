// Error feedback of a reduction: a caller who knows its data from operation to operation has a codec of its
// own, and keeps what the codec lost for the next time (codec::ErrorFeedback). A rank encodes every element
// of its stripes once: in broadcast-all its site's, in owner-reduces its site's for others and the sum where
// it is the owner. So one residual per element serves both, also when owners change: it is added the next
// time.
//
// With scales, what is encoded and summed is in units of them: elements and residuals are divided before a
// chunk is encoded, and multiplied when it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/spec/codec_spec.h"
#include "core/dtype.h"

namespace geocomm::collective {

// What a rank encoded in one operation, in units of the sum (before Avg divides) and of the scales; and what
// it got, in units of the result.
struct FeedbackReport {
  double input_square = 0;       // squared L2 norm of elements + decay * residual; 0 without residuals
  double residual_square = 0;    // of the new residual
  double scaled_square = 0;      // of the result in this rank's stripes, in units of the scales; 0: no scales
  double result_square = 0;      // the same as it is. Finite if and only if that is.
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

// A residual of some elements: as many in each, or none. Units: of the sum.
struct FeedbackSpans {
  std::span<const float> residual;
  std::span<float> next;         // takes the new one; may be `residual`
  std::span<const float> scale;  // or none: 1

  FeedbackSpans part(std::size_t first, std::size_t count) const {
    const auto cut = [&](auto all) { return all.empty() ? all : all.subspan(first, count); };
    return {cut(residual), cut(next), cut(scale)};
  }
};

// All below: `dtype` is Float32, Float16 or BFloat16, and results are rounded to it. Squares are sums in
// double, not finite where an element is not, and only there; the same at all CPU levels.

// Elements and residual to units of the scales, the residual in `next`. Returns the square of elements +
// decay
// * residual in those units.
double enter_scales(core::DType dtype, std::span<std::byte> elements, const FeedbackSpans& feedback,
                    float decay);
// The same where `elements`, Float32, are in those units already.
double enter_scales(std::span<const std::byte> elements, const FeedbackSpans& feedback, float decay);
// elements /= scale; nothing without scales.
void divide_by_scale(core::DType dtype, std::span<std::byte> elements, std::span<const float> scale);

struct ScaledSquares {
  double scaled = 0;
  double plain = 0;
};
// elements = elements / divisor * scale: the squares before and after the multiplication.
ScaledSquares leave_scales(core::DType dtype, std::span<std::byte> elements, int divisor,
                           std::span<const float> scale);

double square_of(core::DType dtype, std::span<const std::byte> elements);
double square_of(std::span<const float> values);

}  // namespace geocomm::collective
