#include "codec/cuda/huffman_planes.h"

#include "codec/cuda/huffman_stages.h"

namespace geocomm::codec::cuda {
namespace {

constexpr std::size_t rounded_up(std::size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

struct Sizes {
  std::size_t blocks_per_plane;
  std::size_t room_per_substream;
  std::size_t planes;  // bytes of the records, and so on
  std::size_t blocks;
  std::size_t codes;
  std::size_t substreams;
};

Sizes sizes_of(std::uint64_t planes, std::size_t plane_bytes) {
  Sizes sizes{};
  sizes.blocks_per_plane = huffman::block_count(plane_bytes == 0 ? 1 : plane_bytes);
  // The longest substream is that of the largest block, or of the largest that has but one.
  const std::size_t largest = plane_bytes < huffman::kBlockBytes ? plane_bytes : huffman::kBlockBytes;
  sizes.room_per_substream =
      substream_room(largest < huffman::kSplitFrom ? largest : huffman::kSplitFrom - 1);
  if (largest >= huffman::kSplitFrom && substream_room(largest) > sizes.room_per_substream) {
    sizes.room_per_substream = substream_room(largest);
  }
  const std::size_t blocks = planes * sizes.blocks_per_plane;
  sizes.planes = rounded_up(planes * sizeof(HuffmanPlane));
  sizes.blocks = rounded_up(blocks * sizeof(HuffmanBlock));
  sizes.codes = rounded_up(blocks * sizeof(HuffmanCode));
  sizes.substreams = blocks * huffman::kMaxSubstreams * sizes.room_per_substream;
  return sizes;
}

}  // namespace

std::size_t huffman_space_bytes(std::uint64_t planes, std::size_t plane_bytes) {
  const Sizes sizes = sizes_of(planes, plane_bytes);
  return sizes.planes + sizes.blocks + sizes.codes + sizes.substreams;
}

std::size_t huffman_decoding_bytes(std::uint64_t planes, std::size_t plane_bytes) {
  const Sizes sizes = sizes_of(planes, plane_bytes);
  return sizes.planes + sizes.blocks;
}

HuffmanSpace cut_huffman_space(std::uint64_t planes, std::size_t plane_bytes, std::byte* space_dev) {
  const Sizes sizes = sizes_of(planes, plane_bytes);
  std::byte* blocks = space_dev + sizes.planes;
  std::byte* codes = blocks + sizes.blocks;
  std::byte* substreams = codes + sizes.codes;
  return {reinterpret_cast<HuffmanPlane*>(space_dev),
          reinterpret_cast<HuffmanBlock*>(blocks),
          reinterpret_cast<HuffmanCode*>(codes),
          reinterpret_cast<std::uint8_t*>(substreams),
          static_cast<std::uint32_t>(planes),
          static_cast<std::uint32_t>(sizes.blocks_per_plane),
          sizes.room_per_substream};
}

core::Status encode_huffman_blocks(const HuffmanSpace& space, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(choose_huffman_modes(space, stream));
  GEOCOMM_RETURN_IF_ERROR(encode_huffman_substreams(space, stream));
  return place_huffman_bodies(space, stream);
}

}  // namespace geocomm::codec::cuda
