// Compress a run of elements into one frame, and back. The layer knows nothing of tensors, sockets or
// threads.
//
// A frame is independently decodable: a FrameHeader (codec/frame.h) and a payload. Received frames are
// hostile until proven otherwise: decoders check every size and never read or write outside the spans they
// were given. All functions are thread-safe and allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec_spec.h"
#include "codec/frame.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec {

struct CompressOptions {
  // Error feedback: as many floats as there are elements, or empty. On entry the old residual, which is added
  // to the input before quantizing; on exit what the frame lost: (input + old residual) - the value that
  // decompress_accumulate() gives, in float; 0 where that is NaN or Inf. Untouched on error.
  std::span<float> residual = {};
  // Stochastic rounding is keyed by (seed, first_element + index): the result depends on nothing else.
  std::uint64_t seed = 0;
  std::uint64_t first_element = 0;
};

// Worst-case size of the frame, header included, in bytes. Cannot fail; 0 elements are allowed.
std::size_t compress_bound(const CodecSpec& spec, core::DType dtype, std::size_t elements);

// Writes one frame to `dst` and returns its size. `src` holds whole elements of `dtype` (any alignment) and
// does not overlap `dst`. None takes every dtype; the others, and a residual, take Float32, Float16 and
// BFloat16 (else Unsupported).
// NaN and Inf arrive as such and harm no neighbour: Int8 and Int4 carry a block that holds one raw. No finite
// value arrives as Inf: Fp16 and Bf16 resort to a frame of codec None where a value is beyond their range, so
// a receiver takes None in place of any codec. -0 may arrive as +0 (Int8, Int4).
// Error of Int8 and Int4 per element: at most 0.5001 of the block's scale (Nearest) or 1.0001 (Stochastic,
// unbiased); scale = absmax / 127 or / 7, rounded up to bf16, at least 2^-126.
// Errors: InvalidArgument (src not whole elements, more than kMaxFrameElements, residual of the wrong length,
// block out of range), Unsupported, DstTooSmall (never with compress_bound() bytes of room).
core::Result<std::size_t> compress(const CodecSpec& spec, core::DType dtype, std::span<const std::byte> src,
                                   std::span<std::byte> dst, const CompressOptions& options = {});

// Decodes a frame to elements of the frame's own dtype, rounding to nearest even and never from a finite
// value to Inf. `dst` (any alignment) must have exactly the frame's elements. Bytes after the frame are left
// alone. On error `dst` is unspecified. Errors: CorruptData, VersionMismatch, DstTooSmall (dst is too small),
// InvalidArgument (dst is too large).
core::Status decompress(std::span<const std::byte> frame, std::span<std::byte> dst);

enum class Accumulate : std::uint8_t { Assign, Add };

// Decodes a frame of a Float32, Float16 or BFloat16 source to float, assigning to `dst` or adding to it in
// one pass. The decoded values are those that decompress() gives *before* rounding to a 16-bit dtype; for
// None they are exact. On error `dst` is as it was. Errors as decompress(), and Unsupported for a frame of
// another dtype.
core::Status decompress_accumulate(std::span<const std::byte> frame, std::span<float> dst, Accumulate mode);

}  // namespace geocomm::codec
