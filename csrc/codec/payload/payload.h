// A payload: a tensor of any size as a run of frames, each of at most 1 MiB of raw elements. What
// geocomm.compress() returns and geocomm.decompress() takes.
//
// Given a pool, the frames are shared out over its threads and the calling thread, which may itself belong to
// the pool. The bytes do not depend on the pool. All functions are thread-safe. Where memory runs out they
// return Internal, and no thread touches what they were given any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/frames/codec.h"
#include "codec/spec/codec_spec.h"
#include "core/dtype.h"
#include "core/executor.h"
#include "core/status.h"

namespace geocomm::codec {

// Raw bytes in each frame of a payload but the last, which may have fewer.
inline constexpr std::size_t kPayloadFrameBytes = std::size_t{1} << 20;

// What the headers of a payload say.
struct PayloadInfo {
  // Of the first frame that is not None (compress() may resort to None), else None.
  CodecSpec spec;
  core::DType dtype = core::DType::Float32;
  std::uint64_t elements = 0;
  std::uint64_t raw_bytes = 0;  // elements * size_of(dtype)
  std::size_t frames = 0;       // at least 1: no elements are one empty frame
};

// Worst-case size of the payload in bytes. Cannot fail.
std::size_t payload_bound(const CodecSpec& spec, core::DType dtype, std::uint64_t elements);

// Writes a payload to `dst`, of at least payload_bound() bytes, and returns its size. Else as compress().
core::Result<std::size_t> compress_payload(const CodecSpec& spec, core::DType dtype,
                                           std::span<const std::byte> src, std::span<std::byte> dst,
                                           const CompressOptions& options = {},
                                           core::ThreadPool* pool = nullptr);

// Checks every frame's header, that none has more than kPayloadFrameBytes of raw elements, and that the
// frames fill `payload` exactly and share one dtype; reads no frame's content. Errors: CorruptData,
// VersionMismatch.
core::Result<PayloadInfo> inspect_payload(std::span<const std::byte> payload);

// decompress_payload() to so many bytes or more stores them past the caches.
inline constexpr std::size_t kStreamingThreshold = std::size_t{32} << 20;

// Decodes to elements of the payload's own dtype: `dst` has exactly PayloadInfo::raw_bytes. On error the
// content of `dst` is unspecified. Errors as decompress().
core::Status decompress_payload(std::span<const std::byte> payload, std::span<std::byte> dst,
                                core::ThreadPool* pool = nullptr);

// Decodes a payload of Float32, Float16 or BFloat16 elements and adds it to `sum`, which has as many, in one
// pass. On error some frames may have been added. Errors as decompress_accumulate().
core::Status accumulate_payload(std::span<const std::byte> payload, std::span<float> sum,
                                core::ThreadPool* pool = nullptr);

}  // namespace geocomm::codec
