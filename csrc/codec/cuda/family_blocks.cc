// Int8, Int4, Bit2, Bit1. The room holds frames of the regular layout, to move encoded blocks
// through, or for planes before or behind their stage; then the stage's own.
#include "codec/cuda/codec_family.h"

namespace geocomm::codec::cuda {
namespace {

using core::Status;

bool has_stage(const CodecSpec& spec) {
  return spec.entropy != Entropy::None;
}

bool is_supported(const CodecSpec& spec) {
  return spec.entropy != Entropy::Zstd;
}

std::size_t largest_plane(const PayloadPlan& plan) {
  return plan.largest().bytes - plan.largest().codes_at;
}

std::size_t frames_bytes(const CodecSpec& spec, const PayloadPlan& plan) {
  return plan.frames > 1 || has_stage(spec) ? (plan.bytes() + 15) / 16 * 16 : 0;
}

std::size_t room_bytes(const CodecSpec& spec, core::DType, const PayloadPlan& plan) {
  return frames_bytes(spec, plan) +
         (has_stage(spec) ? huffman_space_bytes(plan.frames, largest_plane(plan)) : 0);
}

HuffmanSpace stage_space(const CodecSpec& spec, const PayloadPlan& plan, const Workspace& workspace) {
  return cut_huffman_space(plan.frames, largest_plane(plan),
                           reinterpret_cast<std::byte*>(workspace.room + frames_bytes(spec, plan)));
}

Status quantize(const EncodeRun& run, const BlockEncode& args) {
  return run.spec.has_rounding() ? encode_int_blocks(run.spec.id, run.dtype, args, run.stream)
                                 : encode_bit_blocks(run.spec.id, run.dtype, args, run.stream);
}

Status encode(const EncodeRun& run) {
  const PayloadPlan& plan = run.input.plan;
  const Workspace& workspace = run.input.workspace;
  const BlockEncode blocks{run.input.src, run.input.dst,     run.input.residual,
                           run.seed,      run.first_element, run.spec.rounding == Rounding::Stochastic,
                           plan,          workspace};
  LayoutArgs layout{plan, workspace, FrameSizes::Blocks, run.bytes_out};
  if (!has_stage(run.spec)) {
    GEOCOMM_RETURN_IF_ERROR(quantize(run, blocks));
    GEOCOMM_RETURN_IF_ERROR(lay_out_frames(layout, run.stream));
    GEOCOMM_RETURN_IF_ERROR(move_frames(blocks.dst, plan, workspace, run.stream));
    return write_raw_blocks(run.dtype, blocks, run.stream);
  }
  const HuffmanSpace space = stage_space(run.spec, plan, workspace);
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
    GEOCOMM_RETURN_IF_ERROR(decode_stage(args, stage_space(run.spec, args.plan, args.workspace), run.stream));
  }
  GEOCOMM_RETURN_IF_ERROR(check_blocks(run.spec.id, args, run.stream));
  return decode_blocks(run.spec.id, args, run.stream);
}

}  // namespace

const CodecFamily kBlockFamily{is_supported, room_bytes, encode, decode};

}  // namespace geocomm::codec::cuda
