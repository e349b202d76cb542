// Loco: chunks choose as TopK's do, and each writes a record. Received ones go the other way: all is checked,
// then zeros are put where nothing was chosen, and the values to their places.
#include "codec/cuda/codec_family.h"
#include "codec/cuda/loco_stages.h"

namespace geocomm::codec::cuda {
namespace {

using core::Status;

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
