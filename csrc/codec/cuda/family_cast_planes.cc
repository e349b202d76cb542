// Fp16 and Bf16 with a stage.
#include "codec/cuda/codec_family.h"
#include "codec/cuda/stages.h"

namespace geocomm::codec::cuda {
namespace {

using core::Status;

SectionSpace space_of(const PayloadPlan& plan, Direction direction, SpaceCutter& room) {
  SectionShape shape{kCastSections, 1u << kHighBytes, {}};
  shape.is_received = direction == Direction::Decode;
  shape.bytes[kHighBytes] = plan.largest().elements;
  shape.bytes[kLowBytes] = plan.largest().elements;
  return take_section_space(shape, plan, true, room);
}

std::size_t room_bytes(const CodecSpec&, core::DType, const PayloadPlan& plan, Direction direction) {
  SpaceCutter room;
  space_of(plan, direction, room);
  return room.bytes();
}

Status encode(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  SpaceCutter room(input.workspace.room);
  const SectionSpace space = space_of(input.plan, Direction::Encode, room);
  // A frame that the cast cannot carry leaves the residual to its frame of None.
  if (input.residual.data != nullptr) {
    GEOCOMM_RETURN_IF_ERROR(encode_casts(run.spec.id, run.dtype, CastPass::Check, input, run.stream));
  }
  GEOCOMM_RETURN_IF_ERROR(split_casts(run.spec.id, run.dtype, input, space, run.stream));
  return place_sections(run, space, PlainFrames::Named);
}

Status check(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  const SectionSpace space = space_of(run.args.plan, Direction::Decode, room);
  GEOCOMM_RETURN_IF_ERROR(walk_cast_sections(run.args, space, run.stream));
  return decode_sections(run, space, kHighBytes, kCastSections);
}

Status put(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  return join_casts(run.spec.id, run.part(), space_of(run.args.plan, Direction::Decode, room), run.stream);
}

}  // namespace

const CodecFamily kCastPlaneFamily{false, true, room_bytes, encode, check, put};

}  // namespace geocomm::codec::cuda
