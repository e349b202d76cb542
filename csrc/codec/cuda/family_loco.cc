// Loco: chunks choose as TopK's do, and each writes a record. Received ones go the other way: all is checked,
// then zeros are put where nothing was chosen, and the values to their places.
#include "codec/cuda/codec_family.h"
#include "codec/cuda/stages.h"

namespace geocomm::codec::cuda {
namespace {

using core::Status;

SectionShape encoding_shape(const LocoLayout& layout) {
  SectionShape shape;
  shape.count = LocoSection::Count;
  shape.bytes[LocoSection::Head] = sizeof(LocoHead);
  shape.bytes[LocoSection::Records] = static_cast<std::uint32_t>(layout.bytes() - sizeof(LocoHead));
  shape.bytes[LocoSection::Raw] = static_cast<std::uint32_t>(layout.values() * sizeof(float));
  return shape;
}

LocoEncode take_loco_encoding(const CodecSpec& spec, const PayloadPlan& plan, SpaceCutter& room) {
  LocoEncode args{};
  const LocoLayout layout = loco_layout(spec, plan.largest().elements);
  TopKEncodeSpace& space = args.chosen.space;
  space.chunks_per_frame = static_cast<std::uint32_t>(layout.chunks());
  space.chunk_limit = static_cast<std::uint32_t>(layout.k());
  space.values_per_frame = static_cast<std::uint32_t>(layout.values());
  const std::uint64_t values = std::uint64_t{plan.frames} * layout.values();
  space.chunks = room.take<ChunkRecord>(std::uint64_t{plan.frames} * layout.chunks());
  space.values = room.take<float>(values);
  space.places = room.take<std::uint32_t>(values);
  args.k = space.chunk_limit;
  args.raw_values = room.take<std::uint32_t>(plan.frames);
  space.sections = take_section_space(encoding_shape(layout), plan, false, room);
  return args;
}

LocoDecode take_loco_decoding(const PayloadPlan& plan, SpaceCutter& room) {
  LocoDecode args{};
  args.chunks_per_frame = parts_of(plan.largest().elements, kTopKChunk);
  args.ks = room.take<std::uint32_t>(plan.frames);
  args.raw_before = room.take<std::uint32_t>(std::uint64_t{plan.frames} * args.chunks_per_frame);
  // What is received is read where it lies.
  SectionShape shape;
  shape.count = LocoSection::Count;
  shape.is_received = true;
  args.sections = take_section_space(shape, plan, false, room);
  return args;
}

std::size_t room_bytes(const CodecSpec& spec, core::DType, const PayloadPlan& plan, Direction direction) {
  SpaceCutter room;
  if (direction == Direction::Encode) {
    take_loco_encoding(spec, plan, room);
  } else {
    take_loco_decoding(plan, room);
  }
  return room.bytes();
}

Status encode(const EncodeRun& run) {
  SpaceCutter room(run.input.workspace.room);
  LocoEncode args = take_loco_encoding(run.spec, run.input.plan, room);
  args.chosen.src = run.input.src;
  args.chosen.residual = run.input.residual;
  args.chosen.plan = run.input.plan;
  GEOCOMM_RETURN_IF_ERROR(choose_elements(run.dtype, args.chosen, run.stream));
  GEOCOMM_RETURN_IF_ERROR(write_loco_records(args, run.stream));
  return place_sections(run, args.chosen.space.sections, PlainFrames::None);
}

Status check(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  LocoDecode args = take_loco_decoding(run.args.plan, room);
  args.frames = run.args;
  GEOCOMM_RETURN_IF_ERROR(expect_loco_heads(args, run.stream));
  GEOCOMM_RETURN_IF_ERROR(read_loco_heads(args, run.stream));
  GEOCOMM_RETURN_IF_ERROR(check_loco_levels(args, run.stream));
  return check_loco_places(args, run.stream);
}

Status put(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  LocoDecode args = take_loco_decoding(run.args.plan, room);
  args.frames = run.part();
  return put_loco_values(args, run.stream);
}

}  // namespace

const CodecFamily kLocoFamily{true, false, room_bytes, encode, check, put};

}  // namespace geocomm::codec::cuda
