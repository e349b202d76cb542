// The codecs on a CUDA device: the bytes that the CPU gives, made and read where the tensors are.
//
// Everything is enqueued on the caller's stream: no function allocates, waits for the device, or copies
// between host and device. All memory is the caller's, on the current device. Results that only the device
// knows (sizes, whether received bytes were sound) are words in device memory. Thread-safe; calls that share
// memory are ordered by the stream.
//
// Codecs: all, without an entropy stage or with Huffman's (topk only so). The stage zstd is the host's alone,
// as is a step of the whole tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/frames/codec.h"
#include "codec/frames/elements.h"
#include "codec/spec/codec_spec.h"
#include "core/dtype.h"
#include "core/status.h"

struct CUstream_st;

namespace geocomm::codec::cuda {

using Stream = ::CUstream_st*;  // cudaStream_t

// How elements are cut into frames: as payload.h does it, or one frame of up to kMaxFrameElements, as a
// chunk of a collective is.
enum class Framing : std::uint8_t { Payload, SingleFrame };

// Whose business the checksums of frames are. Host: they are neither made nor checked on the device; the host
// does, with codec::seal_frame() and verify_payload(), on the bytes that it moves anyway.
enum class Checksums : std::uint8_t { Device, Host };

struct EncodeOptions {
  ErrorFeedback feedback = {};  // the residual is on the device, aligned to its elements
  std::uint64_t seed = 0;       // as in CompressOptions
  std::uint64_t first_element = 0;
  Framing framing = Framing::Payload;
  Checksums checksums = Checksums::Device;
};

struct DecodeOptions {
  Framing framing = Framing::Payload;
  Checksums checksums = Checksums::Device;
  // The bytes are room that the frames need not fill: how much they do is not known when it is enqueued.
  bool may_be_longer = false;
};

bool is_supported(const CodecSpec& spec, core::DType dtype);

// Room that `dst` needs: the worst case.
std::size_t encoded_bound(const CodecSpec& spec, core::DType dtype, std::uint64_t elements, Framing framing);
// Workspace for either direction, in bytes per element at most (in brackets: with a stage): casts none (3.6),
// blocks 1.1 (2.6), dead zone 2.4 (5.4), bit planes 2.9 (12), lossless 2.1 (5.1), of float32 4.2 (11.8), topk
// (2, as a frame may bring all of them, up to 14 at k = 2048), loco 0.3, 7 at k = 2048.
std::size_t workspace_bytes(const CodecSpec& spec, core::DType dtype, std::uint64_t elements,
                            Framing framing);

// Enqueues the encoding of `elements` at `src_dev` (aligned to its elements; 16 bytes for full speed) to
// `dst_dev` (aligned to 16, of encoded_bound() bytes). `*bytes_out_dev` becomes the payload's size. The
// workspace is aligned to 16 and free again when the stream has passed. Errors: InvalidArgument, Unsupported,
// OutputTooSmall, Driver. Nothing overlaps.
core::Status compress_payload(const CodecSpec& spec, core::DType dtype, const std::byte* src_dev,
                              std::uint64_t elements, std::span<std::byte> dst_dev,
                              const EncodeOptions& options, std::span<std::byte> workspace_dev,
                              std::uint64_t* bytes_out_dev, Stream stream);

// Enqueues the decoding of received bytes, any alignment, which have to hold exactly `elements` of `dtype` in
// frames of `spec` (or of None), and nothing else unless `may_be_longer`. `sink`: sink_of(dtype), Float32 or
// AddToFloat32; ignored for a dtype that only None carries. `dst_dev` is aligned to its elements. Every check
// is made on the device before the first byte is written; what was found stands in `*verdict_dev` (see
// to_status()). Unless it is 0 nothing was written. Errors: as above; they concern the arguments only.
core::Status decompress_payload(const CodecSpec& spec, core::DType dtype,
                                std::span<const std::byte> payload_dev, std::byte* dst_dev,
                                std::uint64_t elements, Sink sink, const DecodeOptions& options,
                                std::span<std::byte> workspace_dev, std::uint64_t* verdict_dev,
                                Stream stream);

// A frame of a batch, as a chunk of a collective is one.
struct BatchFrame {
  std::byte* elements_dev = nullptr;  // encoding: read; decoding: written; aligned to their size
  std::uint64_t elements = 0;         // at most kMaxFrameElements
  // Where the device reaches it: its own memory, or pinned. Encoding: aligned to 16, of compress_bound(), to
  // which it is written without checksums (codec::seal_frame()). Decoding: at any address; bytes behind the
  // frame are nobody's business, and the host has seen to the checksums.
  std::span<std::byte> frame = {};
  std::uint64_t seed = 0;  // as in CompressOptions
  std::uint64_t first_element = 0;
  std::byte* residual_dev = nullptr;  // with BatchFeedback; for all frames or none
  // With BatchFeedback::squares_dev; float32.
  const std::byte* previous_dev = nullptr;
  const std::byte* scale_dev = nullptr;  // or nullptr: 1
  // Encoding, for all frames or none: where the finished frame is copied to, so that `frame`, in the device's
  // memory, can be read again there. As large as `frame`, aligned to 16.
  std::byte* outside = nullptr;
};

struct BatchFeedback {
  core::DType dtype = core::DType::Float32;  // of all residuals
  float decay = 1.0f;
  // Unless nullptr: each frame's residual, float32, is made from `previous_dev`, which stays as it is. Both,
  // and the elements if `scales_elements`, are divided by the frame's scale first. Takes the squares of
  // elements + decay * residual, the frames' tiles one behind the other (batch_tiles()): not finite where
  // such a value is not.
  double* squares_dev = nullptr;
  bool scales_elements = true;
  std::uint32_t* cleared_dev = nullptr;  // with squares_dev: a word that becomes 0; or nullptr
};

// Frames that lie anywhere, of any sizes, coded together: in as many kernels as one of them would take. The
// memory is the caller's until the stream has passed: `table`, aligned to 16, of batch_table_bytes(), is host
// memory that the device reads (pinned); the workspace, aligned to 16, is of batch_workspace_bytes().
struct Batch {
  CodecSpec spec;
  core::DType dtype = core::DType::Float32;
  std::vector<BatchFrame> frames;
  std::span<std::byte> table = {};
  std::span<std::byte> workspace_dev = {};
};

std::size_t batch_table_bytes(std::size_t frames);
// Of a batch: `largest` elements in the largest frame.
std::size_t batch_tiles(std::uint64_t largest, std::size_t frames);
// As if each frame had the elements of the largest, rounded up to a power of two where there are several. For
// one direction: decoding takes less.
std::size_t batch_workspace_bytes(const CodecSpec& spec, core::DType dtype, std::uint64_t largest,
                                  std::size_t frames, bool is_received);

// The errors of the following are those of compress_payload() and decompress_payload().
core::Status compress_batch(const Batch& batch, const BatchFeedback& feedback, Stream stream);
// Decoding. The table is to have the batch, once: before the first step, or when some of its frames have come
// (place_frame()), before the stream comes to that.
core::Status write_table(const Batch& batch);
void place_frame(const Batch& batch, std::size_t index, std::span<const std::byte> frame);
// Checks all frames, on the device; `*verdict_dev` becomes what was found, as above: its frame is an index in
// the batch.
core::Status check_batch(const Batch& batch, std::uint64_t* verdict_dev, Stream stream);
// Then, with the same batch: the elements of `count` frames from `first` on, unless there is a verdict. Parts
// are put in the order of the calls; together they may name each frame once.
core::Status put_batch(const Batch& batch, std::size_t first, std::size_t count, Sink sink,
                       std::uint64_t* verdict_dev, Stream stream);

// What decompress_payload() left in its verdict, once the host has it. Ok, CorruptData or VersionMismatch.
core::Status to_status(std::uint64_t verdict);

}  // namespace geocomm::codec::cuda
