// A delta: the elements of a tensor as what they differ by from a base, which the reader has. Bit-exact for
// every dtype. Unlike a codec's frame, it decodes to nothing without its base, so it is no codec of the
// collectives: weights that changed little, not gradients.
//
// A delta is a run of frames, each of at most 16 MiB of raw elements. A frame carries blocks of 64 Ki words
// in the form that takes the least: nothing (equal), the places and differences of the words that changed,
// the differences of all words, or the words themselves. docs/spec/deltas.md has the format. What is received
// is hostile until proven otherwise: sizes are checked, and nothing outside the spans is touched.
//
// All functions are thread-safe. Given a pool, frames are shared out over its threads and the calling one;
// the bytes do not depend on it. Where memory runs out they return Internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/executor.h"
#include "core/status.h"

namespace geocomm::codec {

inline constexpr std::uint32_t kDeltaMagic = 0x45444F47;  // "GODE" read as bytes
inline constexpr std::uint8_t kDeltaVersion = 1;
// Raw bytes in each frame but the last, which may have fewer.
inline constexpr std::size_t kDeltaFrameBytes = std::size_t{16} << 20;

struct DeltaHeader {
  std::uint32_t magic;
  std::uint8_t version;
  std::uint8_t dtype;  // core::DType
  std::uint16_t unused;
  std::uint32_t elements;
  std::uint32_t changes;    // in blocks of the form Changes
  std::uint32_t gap_bytes;  // what their places take, before they are coded
  std::uint32_t base_crc;   // CRC-32C of the base's elements
  std::uint32_t payload_bytes;
  std::uint32_t payload_crc;  // CRC-32C of the payload
  std::uint32_t header_crc;   // CRC-32C of the 32 bytes before
};
static_assert(sizeof(DeltaHeader) == 36);

struct DeltaInfo {
  core::DType dtype = core::DType::Float32;
  std::uint64_t elements = 0;
  std::size_t frames = 0;  // at least 1: no elements are one empty frame
};

// Worst-case size of a delta in bytes. Cannot fail.
std::size_t delta_bound(core::DType dtype, std::uint64_t elements);

// Writes to `dst`, of at least delta_bound() bytes, how `values` differ from `base`, and returns the size.
// Both hold as many whole elements of `dtype`, at any alignment. Errors: InvalidArgument (sizes),
// OutputTooSmall.
core::Result<std::size_t> make_delta(core::DType dtype, std::span<const std::byte> base,
                                     std::span<const std::byte> values, std::span<std::byte> dst,
                                     core::ThreadPool* pool = nullptr);

// Checks the header of every frame, and that the frames fill `delta` exactly and share one dtype; reads no
// frame's content. Errors: CorruptData, VersionMismatch.
core::Result<DeltaInfo> inspect_delta(std::span<const std::byte> delta);

// Makes the elements of the base, in `values`, those that the delta was made of. Errors: CorruptData,
// VersionMismatch, and InvalidArgument: `values` has another number of elements, or is not the base. Of these
// only CorruptData of a payload whose checksum is right may leave `values` changed.
core::Status apply_delta(std::span<const std::byte> delta, std::span<std::byte> values,
                         core::ThreadPool* pool = nullptr);

}  // namespace geocomm::codec
