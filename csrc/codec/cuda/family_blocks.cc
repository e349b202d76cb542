// Int8, Int4, Bit2, Bit1. The room holds frames of the regular layout, to move encoded blocks
// through, or for planes before or behind their stage; then the stage's own.
#include "codec/cuda/codec_family.h"

namespace geocomm::codec::cuda {
namespace {

using core::Status;

bool has_stage(const CodecSpec& spec) {
  return spec.entropy != Entropy::None;
}

// Of the stage, behind the frames.
HuffmanSpace space_of(const CodecSpec& spec, const PayloadPlan& plan, SpaceCutter& room) {
  if (plan.frames > 1 || has_stage(spec)) room.take<std::uint8_t>(plan.bytes());
  if (!has_stage(spec)) return {};
  return take_huffman_space(plan.frames, plan.largest().bytes - plan.largest().codes_at, false, room);
}

std::size_t room_bytes(const CodecSpec& spec, core::DType, const PayloadPlan& plan) {
  SpaceCutter room;
  space_of(spec, plan, room);
  return room.bytes();
}

Status quantize(const EncodeRun& run, const BlockEncode& args) {
  return run.spec.has_rounding() ? encode_int_blocks(run.spec.id, run.dtype, args, run.stream)
                                 : encode_bit_blocks(run.spec.id, run.dtype, args, run.stream);
}

Status encode(const EncodeRun& run) {
  const PayloadPlan& plan = run.input.plan;
  const Workspace& workspace = run.input.workspace;
  const BlockEncode blocks{run.input, run.seed, run.first_element, run.spec.rounding == Rounding::Stochastic};
  LayoutArgs layout{plan, workspace, FrameSizes::Blocks, run.bytes_out};
  if (!has_stage(run.spec)) {
    GEOCOMM_RETURN_IF_ERROR(quantize(run, blocks));
    GEOCOMM_RETURN_IF_ERROR(lay_out_frames(layout, run.stream));
    GEOCOMM_RETURN_IF_ERROR(move_frames(blocks.dst, plan, workspace, run.stream));
    return write_raw_blocks(run.dtype, blocks, run.stream);
  }
  SpaceCutter room(workspace.room);
  const HuffmanSpace space = space_of(run.spec, plan, room);
  BlockEncode before_stage = blocks;
  before_stage.dst = workspace.room;
  layout.sizes = FrameSizes::StagedBlocks;
  GEOCOMM_RETURN_IF_ERROR(quantize(run, before_stage));
  GEOCOMM_RETURN_IF_ERROR(encode_stage(plan, workspace, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(lay_out_frames(layout, run.stream));
  GEOCOMM_RETURN_IF_ERROR(write_staged_frames(blocks.dst, plan, workspace, space, run.stream));
  return write_raw_blocks(run.dtype, blocks, run.stream);
}

Status decode(const DecodeRun& run) {
  Decode args = run.args;
  if (has_stage(run.spec)) {
    args.staged = args.workspace.room;
    SpaceCutter room(args.workspace.room);
    GEOCOMM_RETURN_IF_ERROR(decode_stage(args, space_of(run.spec, args.plan, room), run.stream));
  }
  GEOCOMM_RETURN_IF_ERROR(check_blocks(run.spec.id, args, run.stream));
  return decode_blocks(run.spec.id, args, run.stream);
}

}  // namespace

const CodecFamily kBlockFamily{true, true, room_bytes, encode, decode};

}  // namespace geocomm::codec::cuda
