// Int8 and Int4: the payload of a frame, in blocks that each have a scale or are raw.
#pragma once

#include <cstddef>
#include <span>

#include "codec/codec.h"
#include "codec/codec_spec.h"
#include "codec/elements.h"
#include "codec/frame.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec {

// Payload bytes that encode_blocks() will write.
std::size_t encoded_blocks_bytes(const CodecSpec& spec, core::DType dtype, const std::byte* src,
                                 std::size_t count, const float* residual);

// Writes the payload and returns its size, at most BlockLayout::max_bytes().
std::size_t encode_blocks(const CodecSpec& spec, core::DType dtype, const std::byte* src, std::size_t count,
                          const CompressOptions& options, std::byte* dst);

// Checks every scale and that the payload has just the raw elements that they announce, before it writes.
core::Status decode_blocks(const FrameView& frame, Sink sink, std::byte* dst);

}  // namespace geocomm::codec
