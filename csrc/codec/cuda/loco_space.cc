#include "codec/cuda/loco_stages.h"

namespace geocomm::codec::cuda {
namespace {

SectionShape encoding_shape(const LocoLayout& layout) {
  SectionShape shape;
  shape.count = LocoSection::Count;
  shape.bytes[LocoSection::Head] = sizeof(LocoHead);
  shape.bytes[LocoSection::Records] = static_cast<std::uint32_t>(layout.bytes() - sizeof(LocoHead));
  shape.bytes[LocoSection::Raw] = static_cast<std::uint32_t>(layout.values() * sizeof(float));
  return shape;
}

}  // namespace

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

}  // namespace geocomm::codec::cuda
