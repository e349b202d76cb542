// Parts of the Huffman encoder.
#pragma once

#include "codec/cuda/huffman_planes.h"
#include "core/status.h"

namespace geocomm::codec::cuda {

// Counts, codes and modes of all blocks. Of coded ones the head says the mode and the bytes of the table.
core::Status choose_huffman_modes(const HuffmanSpace& space, Stream stream);
// Codes the substreams of these blocks; heads are then complete.
core::Status encode_huffman_substreams(const HuffmanSpace& space, Stream stream);
// Where bodies lie in their plane, and its coded bytes.
core::Status place_huffman_bodies(const HuffmanSpace& space, Stream stream);

}  // namespace geocomm::codec::cuda
