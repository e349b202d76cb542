// Lossless. The room holds the sections, then the counts of the runs. Bitmap and lower halves are those of
// float32 alone.
#include <algorithm>

#include "codec/cuda/codec_family.h"
#include "codec/cuda/stages.h"
#include "codec/frames/bitmap.h"

namespace geocomm::codec::cuda {
namespace {

using core::DType;
using core::Status;

SectionShape shape_of(DType dtype, const PayloadPlan& plan, Direction direction) {
  const std::uint32_t elements = plan.largest().elements;
  SectionShape shape{kLosslessSections, 1u << kHigh | 1u << kLow, {}};
  shape.is_received = direction == Direction::Decode;
  shape.bytes[kMode] = 1;
  shape.bytes[kHigh] = elements;
  shape.bytes[kLow] = elements;
  if (dtype == DType::Float32) {
    shape.planes |= 1u << kLowerBitmap | 1u << kLowerHigh | 1u << kLowerLow;
    shape.bytes[kLowerBitmap] = static_cast<std::uint32_t>(bitmap_bytes(elements));
    shape.bytes[kLowerHigh] = elements;
    shape.bytes[kLowerLow] = elements;
  }
  return shape;
}

LosslessSpace space_of(const CodecSpec& spec, DType dtype, const PayloadPlan& plan, Direction direction,
                       SpaceCutter& room) {
  LosslessSpace space{};
  space.sections =
      take_section_space(shape_of(dtype, plan, direction), plan, spec.entropy != Entropy::None, room);
  space.runs_per_frame = std::max(parts_of(plan.largest().elements, kRunElements), 1u);
  space.runs = room.take<std::uint32_t>(std::uint64_t{plan.frames} * space.runs_per_frame);
  return space;
}

std::size_t room_bytes(const CodecSpec& spec, DType dtype, const PayloadPlan& plan, Direction direction) {
  SpaceCutter room;
  space_of(spec, dtype, plan, direction, room);
  return room.bytes();
}

Status encode(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  SpaceCutter room(input.workspace.room);
  const LosslessSpace space = space_of(run.spec, run.dtype, input.plan, Direction::Encode, room);
  GEOCOMM_RETURN_IF_ERROR(split_words(run.dtype, input, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(split_lower_halves(run.dtype, input, space, run.stream));
  return place_sections(run, space.sections, PlainFrames::NamedOrLonger);
}

Status check(const DecodeRun& run) {
  const Decode& args = run.args;
  SpaceCutter room(args.workspace.room);
  const LosslessSpace space = space_of(run.spec, args.dtype, args.plan, Direction::Decode, room);
  const bool is_float32 = args.dtype == DType::Float32;
  const std::uint32_t end = is_float32 ? kLowerHigh : kLosslessSections;
  GEOCOMM_RETURN_IF_ERROR(walk_lossless_sections(args, space, end, run.stream));
  GEOCOMM_RETURN_IF_ERROR(decode_sections(run, space.sections, kMode, end));
  if (!is_float32) return Status::ok();
  GEOCOMM_RETURN_IF_ERROR(count_lower_halves(args, space, run.stream));
  return decode_sections(run, space.sections, kLowerHigh, kLosslessSections);
}

Status put(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  return join_words(run.part(), space_of(run.spec, run.args.dtype, run.args.plan, Direction::Decode, room),
                    run.stream);
}

}  // namespace

const CodecFamily kLosslessFamily{true, true, room_bytes, encode, check, put};

}  // namespace geocomm::codec::cuda
