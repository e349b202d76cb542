#include <algorithm>

#include "codec/cuda/loco_stages.h"
#include "codec/cuda/space_cutter.h"

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

// What is received is read where it lies.
SectionShape decoding_shape() {
  SectionShape shape;
  shape.count = LocoSection::Count;
  shape.is_received = true;
  return shape;
}

std::size_t cut(const CodecSpec& spec, const PayloadPlan& plan, std::uint8_t* room, LocoEncode& args) {
  const LocoLayout layout = loco_layout(spec, plan.largest().elements);
  TopKEncodeSpace& space = args.chosen.space;
  space.chunks_per_frame = static_cast<std::uint32_t>(layout.chunks());
  space.chunk_limit = static_cast<std::uint32_t>(layout.k());
  space.values_per_frame = static_cast<std::uint32_t>(layout.values());
  const std::uint64_t values = std::uint64_t{plan.frames} * layout.values();
  SpaceCutter cutter(room);
  space.chunks = cutter.take<ChunkRecord>(std::uint64_t{plan.frames} * layout.chunks());
  space.values = cutter.take<float>(values);
  space.places = cutter.take<std::uint32_t>(values);
  args.k = space.chunk_limit;
  args.raw_values = cutter.take<std::uint32_t>(plan.frames);
  const SectionShape shape = encoding_shape(layout);
  if (room != nullptr) space.sections = cut_section_space(shape, plan, false, cutter.rest());
  return cutter.bytes() + section_space_bytes(shape, plan, false);
}

std::size_t cut(const PayloadPlan& plan, std::uint8_t* room, LocoDecode& args) {
  args.chunks_per_frame = parts_of(plan.largest().elements, kTopKChunk);
  SpaceCutter cutter(room);
  args.ks = cutter.take<std::uint32_t>(plan.frames);
  args.raw_before = cutter.take<std::uint32_t>(std::uint64_t{plan.frames} * args.chunks_per_frame);
  const SectionShape shape = decoding_shape();
  if (room != nullptr) args.sections = cut_section_space(shape, plan, false, cutter.rest());
  return cutter.bytes() + section_space_bytes(shape, plan, false);
}

}  // namespace

std::size_t loco_space_bytes(const CodecSpec& spec, const PayloadPlan& plan) {
  LocoEncode encoding{};
  LocoDecode decoding{};
  return std::max(cut(spec, plan, nullptr, encoding), cut(plan, nullptr, decoding));
}

LocoEncode cut_loco_encoding(const CodecSpec& spec, const ElementEncode& input) {
  LocoEncode args{};
  cut(spec, input.plan, input.workspace.room, args);
  args.chosen.src = input.src;
  args.chosen.residual = input.residual;
  args.chosen.plan = input.plan;
  return args;
}

LocoDecode cut_loco_decoding(const Decode& frames) {
  LocoDecode args{};
  cut(frames.plan, frames.workspace.room, args);
  args.frames = frames;
  return args;
}

}  // namespace geocomm::codec::cuda
