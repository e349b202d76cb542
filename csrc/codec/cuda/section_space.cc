#include "codec/cuda/section_space.h"

#include <algorithm>

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

}  // namespace geocomm::codec::cuda
