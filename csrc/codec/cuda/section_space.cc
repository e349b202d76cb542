// The memory of sections and of the Huffman stage.
#include "codec/cuda/section_space.h"

#include <algorithm>

#include "codec/cuda/huffman_planes.h"

namespace geocomm::codec::cuda {

SectionSpace take_section_space(const SectionShape& shape, const PayloadPlan& plan, bool has_stage,
                                SpaceCutter& room) {
  SectionSpace space;
  std::uint32_t largest_plane = 0;
  std::uint64_t planes = 0;
  for (std::uint32_t s = 0; s < shape.count; ++s) {
    space.content_at[s] = static_cast<std::uint32_t>(space.bytes_per_frame);
    space.bytes_per_frame += SpaceCutter::aligned(shape.bytes[s]);
    if ((shape.planes >> s & 1u) == 0) continue;
    largest_plane = std::max(largest_plane, shape.bytes[s]);
    planes += plan.frames;
  }
  space.sections = room.take<Section>(std::uint64_t{plan.frames} * shape.count);
  space.contents = room.take<std::uint8_t>(plan.frames * space.bytes_per_frame);
  space.count = shape.count;
  space.planes = shape.planes;
  space.frames = plan.frames;
  space.has_stage = has_stage;
  if (has_stage) space.huffman = take_huffman_space(planes, largest_plane, shape.is_received, room);
  return space;
}

HuffmanSpace take_huffman_space(std::uint64_t planes, std::size_t plane_bytes, bool is_received,
                                SpaceCutter& room) {
  // The longest substream is that of the largest block, or of the largest that has but one.
  const std::size_t largest = std::min(plane_bytes, huffman::kBlockBytes);
  HuffmanSpace space{};
  space.room_per_substream = substream_room(std::min(largest, huffman::kSplitFrom - 1));
  if (largest >= huffman::kSplitFrom) {
    space.room_per_substream = std::max<std::uint64_t>(space.room_per_substream, substream_room(largest));
  }
  space.plane_count = static_cast<std::uint32_t>(planes);
  space.blocks_per_plane =
      static_cast<std::uint32_t>(huffman::block_count(std::max<std::size_t>(plane_bytes, 1)));
  const std::uint64_t blocks = planes * space.blocks_per_plane;
  space.planes = room.take<HuffmanPlane>(planes);
  space.blocks = room.take<HuffmanBlock>(blocks);
  if (is_received) return space;
  space.codes = room.take<HuffmanCode>(blocks);
  space.substreams = room.take<std::uint8_t>(blocks * huffman::kMaxSubstreams * space.room_per_substream);
  return space;
}

core::Status encode_huffman_blocks(const HuffmanSpace& space, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(choose_huffman_modes(space, stream));
  GEOCOMM_RETURN_IF_ERROR(encode_huffman_substreams(space, stream));
  return place_huffman_bodies(space, stream);
}

}  // namespace geocomm::codec::cuda
