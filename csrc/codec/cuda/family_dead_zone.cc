// DeadZone and BitPlanes. The room holds the sections, then the blocks' runs, then their packed codes, then
// the counts of the planes.
#include "codec/cuda/codec_family.h"
#include "codec/cuda/stages.h"
#include "codec/frames/bitmap.h"

namespace geocomm::codec::cuda {
namespace {

using core::Status;

SectionShape shape_of(const CodecSpec& spec, const PayloadPlan& plan, Direction direction) {
  const FrameExtent& largest = plan.largest();
  SectionShape shape{kDeadZoneSections, 1u << kBitmap | 1u << kCodes, {}};
  shape.is_received = direction == Direction::Decode;
  shape.bytes[kSteps] = largest.codes_at;
  shape.bytes[kBitmap] = static_cast<std::uint32_t>(bitmap_bytes(largest.elements));
  shape.bytes[kCodes] = largest.elements;
  if (spec.id == CodecId::BitPlanes) {
    for (std::uint32_t s = kSigns; s <= kFours; ++s) {
      shape.planes |= 1u << s;
      shape.bytes[s] = shape.bytes[kBitmap];
    }
  }
  return shape;
}

DeadZoneSpace space_of(const CodecSpec& spec, const PayloadPlan& plan, Direction direction,
                       SpaceCutter& room) {
  DeadZoneSpace space{};
  space.sections =
      take_section_space(shape_of(spec, plan, direction), plan, spec.entropy != Entropy::None, room);
  space.runs = room.take<DeadZoneRun>(plan.blocks());
  space.packed_bytes = SpaceCutter::aligned(plan.largest().elements);
  space.packed = room.take<std::uint8_t>(plan.frames * space.packed_bytes);
  space.counts = room.take<std::uint32_t>(std::uint64_t{plan.frames} * kDeadZoneSections);
  return space;
}

std::size_t room_bytes(const CodecSpec& spec, core::DType, const PayloadPlan& plan, Direction direction) {
  SpaceCutter room;
  space_of(spec, plan, direction, room);
  return room.bytes();
}

Status encode(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  SpaceCutter room(input.workspace.room);
  const DeadZoneSpace space = space_of(run.spec, input.plan, Direction::Encode, room);
  GEOCOMM_RETURN_IF_ERROR(quantize_dead_zone(run.dtype, run.spec.step, input, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(gather_dead_zone_codes(input, space, run.stream));
  if (run.spec.id == CodecId::BitPlanes) GEOCOMM_RETURN_IF_ERROR(split_codes(input, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(place_sections(run, space.sections, PlainFrames::None));
  return write_dead_zone_raw(run.dtype, input, space, run.stream);
}

Status check(const DecodeRun& run) {
  const Decode& args = run.args;
  SpaceCutter room(args.workspace.room);
  const DeadZoneSpace space = space_of(run.spec, args.plan, Direction::Decode, room);
  const bool has_planes = run.spec.id == CodecId::BitPlanes;
  GEOCOMM_RETURN_IF_ERROR(walk_dead_zone_blocks(args, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(decode_sections(run, space.sections, kSteps, kSigns));
  GEOCOMM_RETURN_IF_ERROR(check_dead_zone_blocks(args, space, has_planes, run.stream));
  return has_planes ? find_codes(run, space)
                    : decode_sections(run, space.sections, kSigns, kDeadZoneSections);
}

Status put(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  return decode_dead_zone(run.part(), space_of(run.spec, run.args.plan, Direction::Decode, room), run.stream);
}

}  // namespace

const CodecFamily kDeadZoneFamily{true, true, room_bytes, encode, check, put};

}  // namespace geocomm::codec::cuda
