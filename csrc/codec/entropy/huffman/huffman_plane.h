// The Huffman stage of plane.h: the same contracts. Any bytes, in blocks that are coded by themselves.
#pragma once

#include <cstddef>
#include <span>

#include "codec/entropy/huffman/plane_format.h"
#include "core/status.h"

namespace geocomm::codec::huffman {

std::size_t huffman_plane_bound(std::size_t bytes);
// least_gain_percent: blocks that would gain less stay as they are. 0 for what is read once, over a slow
// line.
std::size_t encode_huffman_plane(std::span<const std::byte> src, std::byte* dst,
                                 unsigned least_gain_percent = kLeastGainPercent);
core::Result<std::size_t> huffman_plane_bytes(std::span<const std::byte> coded, std::size_t bytes);
core::Status decode_huffman_plane(std::span<const std::byte> coded, std::span<std::byte> dst);

}  // namespace geocomm::codec::huffman
