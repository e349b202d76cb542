// Compress a run of elements into one frame, and back. The layer knows nothing of tensors, sockets or
// threads.
//
// A frame is independently decodable: a FrameHeader (frame.h) and a payload. Received frames are
// hostile until proven otherwise: decoders check every size and never read or write outside the spans they
// were given. All functions are thread-safe, allocate nothing but what thread_scratch.h and zstd keep, and
// compute under core::FloatRules, whatever the calling thread has set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/frames/frame.h"
#include "codec/spec/codec_spec.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec {

// Error feedback (Seide et al.: 1-bit stochastic gradient descent; Interspeech 2014): what the last frame
// lost is added to this input. On entry the old residual; the frame carries v = input + decay * residual; on
// exit v - the value that decompress_accumulate() gives, 0 where that is NaN or Inf. Float arithmetic, each
// operation rounded; a BFloat16 residual is rounded to nearest even when it is stored. Untouched on error.
struct ErrorFeedback {
  std::byte* residual = nullptr;             // nullptr: none. Any alignment, does not overlap the rest.
  core::DType dtype = core::DType::Float32;  // or BFloat16
  std::size_t elements = 0;                  // as many as the input has
  float decay = 1.0f;                        // finite

  bool is_on() const { return residual != nullptr; }
  // That of the elements [first, first + count).
  ErrorFeedback part(std::size_t first, std::size_t count) const {
    if (!is_on()) return *this;
    return {residual + first * core::size_of(dtype), dtype, count, decay};
  }
};

struct CompressOptions {
  ErrorFeedback feedback = {};
  // Stochastic rounding is keyed by (seed, first_element + index): the result depends on nothing else.
  std::uint64_t seed = 0;
  std::uint64_t first_element = 0;
};

// Worst-case size of the frame, header included, in bytes. Cannot fail; 0 elements are allowed.
std::size_t compress_bound(const CodecSpec& spec, core::DType dtype, std::size_t elements);
// The same where the codec can carry all values: no NaN, no Inf, none beyond its range. Of codecs with a
// fixed rate it is the exact size.
std::size_t usual_compress_bound(const CodecSpec& spec, core::DType dtype, std::size_t elements);

// Writes one frame to `dst`, which has room for compress_bound(), and returns its size. `src` holds whole
// elements of `dtype` (any alignment) and does not overlap `dst`. None and Lossless take every dtype; the
// others, and a residual, take Float32, Float16 and BFloat16 (else Unsupported).
// NaN and Inf arrive as such and harm no neighbour: a block that holds one goes raw. No finite value arrives
// as Inf: where a codec cannot carry an input (Fp16 and Bf16: a value beyond their range; Lossless: a dtype
// that it knows nothing of) the frame is one of None, so a receiver takes None in place of any codec. -0 may
// arrive as +0 but in None and Lossless.
// Errors per element are stated in docs/reference/codec-strings.md.
// Errors: InvalidArgument (src not whole elements, more than kMaxFrameElements, residual of the wrong length
// or dtype, settings out of range), Unsupported (dtype; a stage that this build lacks), OutputTooSmall.
core::Result<std::size_t> compress(const CodecSpec& spec, core::DType dtype, std::span<const std::byte> src,
                                   std::span<std::byte> dst, const CompressOptions& options = {});

// Cached: as programs do. Streaming: past the caches, where `dst` is aligned to 64 bytes and the codec has
// that; for `dst` that is part of something larger than the caches.
enum class Stores : std::uint8_t { Cached, Streaming };

// Decodes a frame to elements of the frame's own dtype, rounding to nearest even and never from a finite
// value to Inf. `dst` (any alignment) must have exactly the frame's elements. Bytes after the frame are left
// alone. On error `dst` is unspecified. Errors: CorruptData, VersionMismatch, OutputTooSmall (dst is too
// small), InvalidArgument (dst is too large), Unsupported (a stage that this build lacks).
core::Status decompress(std::span<const std::byte> frame, std::span<std::byte> dst,
                        Stores stores = Stores::Cached);

enum class Accumulate : std::uint8_t { Assign, Add };

// Decodes a frame of a Float32, Float16 or BFloat16 source to float, assigning to `dst` or adding to it in
// one pass. The decoded values are those that decompress() gives *before* rounding to a 16-bit dtype; for
// None and Lossless they are exact. TopK and Loco add only what they carry: the other elements are not
// touched. On error `dst` is as it was. Errors as decompress(), and Unsupported for a frame of another dtype.
core::Status decompress_accumulate(std::span<const std::byte> frame, std::span<float> dst, Accumulate mode);

}  // namespace geocomm::codec
