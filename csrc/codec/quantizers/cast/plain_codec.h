// Elements as they are: the payload of None and the raw blocks of the block codecs.
#pragma once

#include <cstddef>

#include "codec/frames/codec.h"
#include "codec/frames/elements.h"
#include "core/dtype.h"

namespace geocomm::codec {

// Writes `count` elements to `dst`. With `feedback`, that of these elements (ErrorFeedback::part), the
// compressible elements written are input + decay * residual, and the residual becomes what rounding to
// `dtype` lost, 0 where the sum is NaN or Inf.
void encode_plain(core::DType dtype, const std::byte* src, std::size_t count, const ErrorFeedback& feedback,
                  std::byte* dst);

// Takes `count` elements of a compressible dtype to `dst`. To their own dtype they go bit for bit.
void decode_plain(core::DType dtype, const std::byte* payload, std::size_t count, Sink sink, std::byte* dst);

}  // namespace geocomm::codec
