// Substreams of a block: the carried bits at their front, and the split of a block among them.
#pragma once

#include <cstddef>
#include <span>

#include "codec/entropy/huffman/code_table.h"

namespace geocomm::codec::huffman {

// Codes a block's symbols, which all have codes, and returns the bytes: sizes of substreams and substreams,
// as in a body without a table. `dst` has room for body_estimate() of no table; what it holds then is at its
// *end*.
std::size_t encode_substreams(const EncodeTable& table, std::span<const std::byte> src,
                              std::span<std::byte> dst);

// The inverse; false where `coded` does not decode to exactly dst.size() symbols.
bool decode_substreams(const DecodeTable& table, std::span<const std::byte> coded, std::span<std::byte> dst);

}  // namespace geocomm::codec::huffman
