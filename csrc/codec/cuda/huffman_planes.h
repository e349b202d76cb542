// The Huffman stage on a device: planes to their coded form and back, many at a time, byte for byte as
// codec/entropy/huffman does it. docs/spec/codecs.md, "Planes", has the format.
//
// Planes are records in device memory, so that what only the device knows (their places and sizes) never
// passes through the host. Each has room for the same number of blocks, of which it uses what its bytes need.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cuda/cuda_codec.h"
#include "codec/cuda/payload_plan.h"
#include "codec/entropy/huffman/plane_format.h"
#include "core/status.h"

namespace geocomm::codec::cuda {

struct HuffmanPlane {
  const std::uint8_t* from;   // encoding: the plane; decoding: its coded form
  std::uint8_t* to;           // the other
  std::uint64_t coded_bytes;  // decoding: as many as are there, until the heads have been read
  std::uint32_t bytes;
  std::uint32_t frame;  // for the verdict
};

// What is known of a block.
struct HuffmanBlock {
  std::uint32_t head;
  std::uint32_t table_block;  // the block, of its plane, that has the table of this one
  std::uint32_t body_at;      // in the coded plane
  std::uint32_t coded_bits;   // by its own table
  std::uint32_t substream_bytes[huffman::kMaxSubstreams];
};

// Encoding: its counts and its own code.
struct HuffmanCode {
  std::uint32_t counts[huffman::kSymbols];
  std::uint8_t lengths[huffman::kSymbols];
};

// Room that a substream takes at most: codes of 12 bits, carries; in whole units of 16 bytes.
constexpr std::size_t substream_room(std::size_t block_bytes) {
  const std::size_t symbols =
      huffman::substream_length(block_bytes, huffman::substream_count(block_bytes) - 1);
  return (symbols * huffman::kMaxCodeBits / 8 + 2 * huffman::kSubstreamOverhead) / 16 * 16;
}
struct HuffmanSpace {
  HuffmanPlane* planes;
  HuffmanBlock* blocks;
  HuffmanCode* codes;
  std::uint8_t* substreams;  // of every block: its substreams, each at the end of its room
  std::uint32_t plane_count;
  std::uint32_t blocks_per_plane;
  std::uint64_t room_per_substream;

  // Of a plane's block in `blocks` and `codes`.
  GEOCOMM_HOST_DEVICE std::uint64_t slot(std::uint64_t plane, std::uint64_t block) const {
    return plane * blocks_per_plane + block;
  }
};

// For so many planes of at most `plane_bytes`. With `is_received` it is for decoding only, which needs far
// less.
HuffmanSpace take_huffman_space(std::uint64_t planes, std::size_t plane_bytes, bool is_received,
                                SpaceCutter& room);

// Encoding, in this order. `from` and `bytes` of the planes are set: codes each block, and finds the sizes of
// the coded planes.
core::Status encode_huffman_blocks(const HuffmanSpace& space, Stream stream);
// `to` is set as well: puts the coded planes there.
core::Status write_huffman_planes(const HuffmanSpace& space, Stream stream);

// Decoding. All are set, and the heads have been read (huffman.cuh). Nothing is read but the coded
// planes, nothing written but `bytes` from `to` on. Does nothing once there is a verdict, and reports what is
// wrong.
core::Status decode_huffman_planes(const HuffmanSpace& space, std::uint64_t* verdict, Stream stream);

}  // namespace geocomm::codec::cuda
