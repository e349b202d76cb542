// How often each symbol of a block occurs.
#pragma once

#include <cstddef>
#include <span>

#include "codec/entropy/huffman/code_table.h"

namespace geocomm::codec::huffman {

// Counts of the bytes of `src`, at most kBlockBytes.
Histogram count_symbols(std::span<const std::byte> src);

}  // namespace geocomm::codec::huffman
