#include "codec/cuda/top_k_space.h"

#include <algorithm>

#include "codec/cuda/space_cutter.h"
#include "codec/quantizers/select/top_k_select.h"

namespace geocomm::codec::cuda {
namespace {

std::uint32_t most_elements(const PayloadPlan& plan) {
  return plan.frames > 1 ? plan.full.elements : plan.last.elements;
}

SectionShape encoding_shape(const CodecSpec& spec, const PayloadPlan& plan) {
  const std::size_t limit = frame_limit(spec, most_elements(plan));
  const auto count = static_cast<std::uint32_t>(limit);
  SectionShape shape;
  shape.count = TopKSection::Count;
  shape.planes = 1u << TopKSection::Index | (spec.values == Values::Int8 ? 1u << TopKSection::Plane : 0u);
  shape.bytes[TopKSection::Index] = static_cast<std::uint32_t>(max_index_bytes(limit, most_elements(plan)));
  // Floats lie in the workspace already.
  if (spec.values != Values::Fp32) shape.bytes[TopKSection::Packed] = packed_bytes(spec.values, count);
  if (spec.values == Values::Int8) shape.bytes[TopKSection::Plane] = count;
  if (has_value_blocks(spec.values)) {
    shape.bytes[TopKSection::Scales] = parts_of(limit, kValueBlock) * scale_bytes(spec.values);
    shape.bytes[TopKSection::Raw] = 4 * count;
  }
  return shape;
}

// A sender may have chosen all elements of a frame, and has not said beforehand in which form.
SectionShape decoding_shape(const PayloadPlan& plan) {
  SectionShape shape;
  shape.count = TopKSection::Count;
  shape.planes = 1u << TopKSection::Index | 1u << TopKSection::Plane;
  shape.bytes[TopKSection::Index] =
      static_cast<std::uint32_t>(max_index_bytes(most_elements(plan), most_elements(plan)));
  shape.bytes[TopKSection::Plane] = most_elements(plan);
  shape.is_received = true;
  return shape;
}

std::size_t cut(const CodecSpec& spec, const PayloadPlan& plan, std::uint8_t* room, TopKEncodeSpace& space) {
  const std::size_t limit = frame_limit(spec, most_elements(plan));
  space.chunks_per_frame = parts_of(most_elements(plan), kTopKChunk);
  space.chunk_limit = static_cast<std::uint32_t>(chunk_limit(spec));
  space.values_per_frame =
      static_cast<std::uint32_t>(parts_of(limit, SpaceCutter::kAlignment) * SpaceCutter::kAlignment);
  space.blocks_per_frame = parts_of(limit, kValueBlock);
  const std::uint64_t values = std::uint64_t{plan.frames} * space.values_per_frame;
  SpaceCutter cutter(room);
  space.chunks = cutter.take<ChunkRecord>(std::uint64_t{plan.frames} * space.chunks_per_frame);
  space.frames = cutter.take<ChosenFrame>(plan.frames);
  space.values = cutter.take<float>(values);
  space.places = cutter.take<std::uint32_t>(values);
  const SectionShape shape = encoding_shape(spec, plan);
  if (room != nullptr) space.sections = cut_section_space(shape, plan, true, cutter.rest());
  return cutter.bytes() + section_space_bytes(shape, plan, true);
}

std::size_t cut(const PayloadPlan& plan, std::uint8_t* room, TopKDecodeSpace& space) {
  const SectionShape shape = decoding_shape(plan);
  space.tiles_per_frame = parts_of(shape.bytes[TopKSection::Index], kIndexTile);
  space.blocks_per_frame = parts_of(most_elements(plan), kValueBlock);
  SpaceCutter cutter(room);
  space.heads = cutter.take<TopKHead>(plan.frames);
  space.tiles = cutter.take<IndexTile>(std::uint64_t{plan.frames} * space.tiles_per_frame);
  space.raw_before = cutter.take<std::uint32_t>(std::uint64_t{plan.frames} * space.blocks_per_frame);
  if (room != nullptr) space.sections = cut_section_space(shape, plan, true, cutter.rest());
  return cutter.bytes() + section_space_bytes(shape, plan, true);
}

}  // namespace

std::size_t top_k_space_bytes(const CodecSpec& spec, const PayloadPlan& plan) {
  TopKEncodeSpace encoding{};
  TopKDecodeSpace decoding{};
  return std::max(cut(spec, plan, nullptr, encoding), cut(plan, nullptr, decoding));
}

TopKEncodeSpace cut_top_k_encoding(const CodecSpec& spec, const PayloadPlan& plan, std::uint8_t* room) {
  TopKEncodeSpace space{};
  cut(spec, plan, room, space);
  return space;
}

TopKDecodeSpace cut_top_k_decoding(const PayloadPlan& plan, std::uint8_t* room) {
  TopKDecodeSpace space{};
  cut(plan, room, space);
  return space;
}

}  // namespace geocomm::codec::cuda
