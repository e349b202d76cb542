// DeadZone and BitPlanes. The room holds the sections, then the blocks' runs, then their packed codes, then
// the counts of the planes.
#include "codec/cuda/codec_family.h"
#include "codec/cuda/dead_zone_stages.h"
#include "codec/frames/bitmap.h"

namespace geocomm::codec::cuda {
namespace {

using core::Status;

constexpr std::size_t rounded_up(std::size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

bool has_stage(const CodecSpec& spec) {
  return spec.entropy != Entropy::None;
}

bool is_supported(const CodecSpec& spec) {
  return spec.entropy != Entropy::Zstd;
}

SectionShape shape_of(const CodecSpec& spec, const PayloadPlan& plan) {
  const FrameExtent& largest = plan.largest();
  SectionShape shape{kDeadZoneSections, 1u << kBitmap | 1u << kCodes, {}};
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

std::size_t runs_bytes(const PayloadPlan& plan) {
  return rounded_up(plan.blocks() * sizeof(DeadZoneRun));
}
std::size_t packed_bytes(const PayloadPlan& plan) {
  return rounded_up(plan.largest().elements);
}

std::size_t room_bytes(const CodecSpec& spec, core::DType, const PayloadPlan& plan) {
  return section_space_bytes(shape_of(spec, plan), plan, has_stage(spec)) + runs_bytes(plan) +
         plan.frames * (packed_bytes(plan) + kDeadZoneSections * sizeof(std::uint32_t));
}

DeadZoneSpace space_of(const CodecSpec& spec, const PayloadPlan& plan, const Workspace& workspace) {
  const SectionShape shape = shape_of(spec, plan);
  std::uint8_t* runs = workspace.room + section_space_bytes(shape, plan, has_stage(spec));
  std::uint8_t* packed = runs + runs_bytes(plan);
  return {cut_section_space(shape, plan, has_stage(spec), workspace.room),
          reinterpret_cast<DeadZoneRun*>(runs), packed, packed_bytes(plan),
          reinterpret_cast<std::uint32_t*>(packed + plan.frames * packed_bytes(plan))};
}

Status encode(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  const DeadZoneSpace space = space_of(run.spec, input.plan, input.workspace);
  GEOCOMM_RETURN_IF_ERROR(quantize_dead_zone(run.dtype, run.spec.step, input, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(gather_dead_zone_codes(input, space, run.stream));
  if (run.spec.id == CodecId::BitPlanes) GEOCOMM_RETURN_IF_ERROR(split_codes(input, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(place_sections(run, space.sections, false));
  return write_dead_zone_raw(run.dtype, input, space, run.stream);
}

Status decode(const DecodeRun& run) {
  const Decode& args = run.args;
  const DeadZoneSpace space = space_of(run.spec, args.plan, args.workspace);
  GEOCOMM_RETURN_IF_ERROR(name_dead_zone_blocks(args, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(walk_sections(run, space.sections, kSteps, kSigns));
  GEOCOMM_RETURN_IF_ERROR(check_dead_zone_blocks(args, space, run.stream));
  if (run.spec.id == CodecId::BitPlanes) {
    GEOCOMM_RETURN_IF_ERROR(find_codes(run, space));
  } else {
    GEOCOMM_RETURN_IF_ERROR(walk_sections(run, space.sections, kSigns, kDeadZoneSections));
  }
  GEOCOMM_RETURN_IF_ERROR(decode_dead_zone(args, space, run.stream));
  return decode_plain_frames(args, run.stream);
}

}  // namespace

const CodecFamily kDeadZoneFamily{is_supported, room_bytes, encode, decode};

}  // namespace geocomm::codec::cuda
