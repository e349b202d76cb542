// The zstd stage of plane.h: the same contracts. Absent from builds without libzstd.
#pragma once

#include <cstddef>
#include <span>

#include "core/status.h"

namespace geocomm::codec {

// Whether this build has libzstd. Without it encode and decode must not be called.
bool has_zstd();

std::size_t zstd_plane_bound(std::size_t bytes);
std::size_t encode_zstd_plane(std::span<const std::byte> src, std::byte* dst);
core::Result<std::size_t> zstd_plane_bytes(std::span<const std::byte> coded, std::size_t bytes);
core::Status decode_zstd_plane(std::span<const std::byte> coded, std::span<std::byte> dst);

}  // namespace geocomm::codec
