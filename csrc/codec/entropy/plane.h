// A plane: a run of bytes of one kind (codes, a bitmap, exponents), packed by an entropy stage. Planes are
// what every codec hands to its stage, so that codecs and stages know nothing of each other.
//
// None: the bytes as they are. Huffman: plane_format.h. Zstd: one zstd frame, or the bytes as they
// are where that is shorter. docs/spec/codecs.md has the formats. Coded bytes are hostile until proven
// otherwise. All functions are thread-safe.
#pragma once

#include <cstddef>
#include <span>

#include "codec/spec/codec_spec.h"
#include "core/status.h"

namespace geocomm::codec {

// Most bytes in a plane: those of the largest frame in its widest form.
inline constexpr std::size_t kMaxPlaneBytes = std::size_t{1} << 29;

// Whether this build has the stage (zstd may have been missing).
bool has_stage(Entropy stage);

// Worst-case coded size of a plane of `bytes`. Cannot fail.
std::size_t plane_bound(Entropy stage, std::size_t bytes);

// Writes the coded plane to `dst`, which has room for plane_bound(), and returns its size. Precondition:
// has_stage(stage), src has at most kMaxPlaneBytes and does not overlap dst. No bytes give no bytes.
std::size_t encode_plane(Entropy stage, std::span<const std::byte> src, std::byte* dst);

// How many of `coded`'s bytes are the plane of `bytes` bytes that begins there. Reads headers only.
// CorruptData: they are not all there, or no plane of that size.
core::Result<std::size_t> coded_plane_bytes(Entropy stage, std::span<const std::byte> coded,
                                            std::size_t bytes);

// Decodes to all of `dst`. `coded` is exactly what coded_plane_bytes() found. CorruptData: it does not decode
// to dst.size() bytes; `dst` is then unspecified.
core::Status decode_plane(Entropy stage, std::span<const std::byte> coded, std::span<std::byte> dst);

// Both: takes a plane off the front of `coded`, to all of `dst`.
core::Status take_plane(Entropy stage, std::span<const std::byte>& coded, std::span<std::byte> dst);

}  // namespace geocomm::codec
