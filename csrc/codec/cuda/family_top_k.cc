// TopK: chunks choose, places become an index, values take their form; each part of that is a section of the
// frame. Received ones go the other way: all is checked, then zeros are put where nothing was chosen, and the
// values to their places.
#include "codec/cuda/codec_family.h"
#include "codec/cuda/top_k_stages.h"

namespace geocomm::codec::cuda {
namespace {

using core::Status;

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
