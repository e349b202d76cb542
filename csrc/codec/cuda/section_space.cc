#include "codec/cuda/section_space.h"

#include <algorithm>

namespace geocomm::codec::cuda {
namespace {

constexpr std::size_t rounded_up(std::size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

struct Sizes {
  std::size_t records = 0;
  std::size_t contents_per_frame = 0;
  std::size_t largest_plane = 0;
  std::uint64_t planes = 0;
};

Sizes sizes_of(const SectionShape& shape, const PayloadPlan& plan) {
  Sizes sizes;
  sizes.records = rounded_up(std::uint64_t{plan.frames} * shape.count * sizeof(Section));
  for (std::uint32_t s = 0; s < shape.count; ++s) {
    sizes.contents_per_frame += rounded_up(shape.bytes[s]);
    if ((shape.planes >> s & 1u) == 0) continue;
    sizes.largest_plane = std::max<std::size_t>(sizes.largest_plane, shape.bytes[s]);
    sizes.planes += plan.frames;
  }
  return sizes;
}

}  // namespace

std::size_t section_space_bytes(const SectionShape& shape, const PayloadPlan& plan, bool has_stage) {
  const Sizes sizes = sizes_of(shape, plan);
  const std::size_t unstaged = sizes.records + plan.frames * sizes.contents_per_frame;
  if (!has_stage) return unstaged;
  return unstaged + (shape.is_received ? huffman_decoding_bytes(sizes.planes, sizes.largest_plane)
                                       : huffman_space_bytes(sizes.planes, sizes.largest_plane));
}

SectionSpace cut_section_space(const SectionShape& shape, const PayloadPlan& plan, bool has_stage,
                               std::uint8_t* room) {
  const Sizes sizes = sizes_of(shape, plan);
  SectionSpace space;
  space.sections = reinterpret_cast<Section*>(room);
  space.contents = room + sizes.records;
  space.bytes_per_frame = sizes.contents_per_frame;
  std::size_t at = 0;
  for (std::uint32_t s = 0; s < shape.count; ++s) {
    space.content_at[s] = static_cast<std::uint32_t>(at);
    at += rounded_up(shape.bytes[s]);
  }
  space.count = shape.count;
  space.planes = shape.planes;
  space.frames = plan.frames;
  space.has_stage = has_stage;
  if (has_stage) {
    std::uint8_t* behind = space.contents + plan.frames * sizes.contents_per_frame;
    space.huffman =
        cut_huffman_space(sizes.planes, sizes.largest_plane, reinterpret_cast<std::byte*>(behind));
  }
  return space;
}

}  // namespace geocomm::codec::cuda
