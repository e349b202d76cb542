// TopK: chunks choose, places become an index, values take their form; each part of that is a section of the
// frame. Received ones go the other way: all is checked, then zeros are put where nothing was chosen, and the
// values to their places.
#include "codec/cuda/codec_family.h"
#include "codec/cuda/stages.h"
#include "codec/quantizers/select/top_k_select.h"

namespace geocomm::codec::cuda {
namespace {

using core::Status;

SectionShape encoding_shape(const CodecSpec& spec, const PayloadPlan& plan) {
  const std::size_t limit = frame_limit(spec, plan.largest().elements);
  const auto count = static_cast<std::uint32_t>(limit);
  SectionShape shape;
  shape.count = TopKSection::Count;
  shape.planes = 1u << TopKSection::Index | (spec.values == Values::Int8 ? 1u << TopKSection::Plane : 0u);
  shape.bytes[TopKSection::Index] =
      static_cast<std::uint32_t>(max_index_bytes(limit, plan.largest().elements));
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
      static_cast<std::uint32_t>(max_index_bytes(plan.largest().elements, plan.largest().elements));
  shape.bytes[TopKSection::Plane] = plan.largest().elements;
  shape.is_received = true;
  return shape;
}

TopKEncodeSpace take_top_k_encoding(const CodecSpec& spec, const PayloadPlan& plan, SpaceCutter& room) {
  TopKEncodeSpace space{};
  const std::size_t limit = frame_limit(spec, plan.largest().elements);
  space.chunks_per_frame = parts_of(plan.largest().elements, kTopKChunk);
  space.chunk_limit = static_cast<std::uint32_t>(chunk_limit(spec));
  space.values_per_frame = static_cast<std::uint32_t>(SpaceCutter::aligned(limit));
  space.blocks_per_frame = parts_of(limit, kValueBlock);
  const std::uint64_t values = std::uint64_t{plan.frames} * space.values_per_frame;
  space.chunks = room.take<ChunkRecord>(std::uint64_t{plan.frames} * space.chunks_per_frame);
  space.frames = room.take<ChosenFrame>(plan.frames);
  space.values = room.take<float>(values);
  space.places = room.take<std::uint32_t>(values);
  space.sections = take_section_space(encoding_shape(spec, plan), plan, true, room);
  return space;
}

TopKDecodeSpace take_top_k_decoding(const PayloadPlan& plan, SpaceCutter& room) {
  TopKDecodeSpace space{};
  const SectionShape shape = decoding_shape(plan);
  space.tiles_per_frame = parts_of(shape.bytes[TopKSection::Index], kIndexTile);
  space.blocks_per_frame = parts_of(plan.largest().elements, kValueBlock);
  space.heads = room.take<TopKHead>(plan.frames);
  space.tiles = room.take<IndexTile>(std::uint64_t{plan.frames} * space.tiles_per_frame);
  space.raw_before = room.take<std::uint32_t>(std::uint64_t{plan.frames} * space.blocks_per_frame);
  space.sections = take_section_space(shape, plan, true, room);
  return space;
}

std::size_t room_bytes(const CodecSpec& spec, core::DType, const PayloadPlan& plan, Direction direction) {
  SpaceCutter room;
  if (direction == Direction::Encode) {
    take_top_k_encoding(spec, plan, room);
  } else {
    take_top_k_decoding(plan, room);
  }
  return room.bytes();
}

Status encode(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  SpaceCutter room(input.workspace.room);
  const TopKEncodeSpace space = take_top_k_encoding(run.spec, input.plan, room);
  const TopKEncode args{input.src, input.residual, input.plan, space, run.spec.values};
  GEOCOMM_RETURN_IF_ERROR(choose_elements(run.dtype, args, run.stream));
  GEOCOMM_RETURN_IF_ERROR(write_places(args, run.stream));
  GEOCOMM_RETURN_IF_ERROR(code_values(args, run.stream));
  return place_sections(run, space.sections, PlainFrames::None);
}

Status check(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  const TopKDecodeSpace space = take_top_k_decoding(run.args.plan, room);
  const TopKDecode args{run.args, space};
  GEOCOMM_RETURN_IF_ERROR(expect_heads(args, run.stream));
  GEOCOMM_RETURN_IF_ERROR(read_heads(args, run.stream));
  GEOCOMM_RETURN_IF_ERROR(decode_sections(run, space.sections, TopKSection::Index, TopKSection::Raw));
  GEOCOMM_RETURN_IF_ERROR(check_scales(args, run.stream));
  return check_places(args, run.stream);
}

Status put(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  return put_chosen({run.part(), take_top_k_decoding(run.args.plan, room)}, run.stream);
}

}  // namespace

const CodecFamily kTopKFamily{false, true, room_bytes, encode, check, put};

}  // namespace geocomm::codec::cuda
