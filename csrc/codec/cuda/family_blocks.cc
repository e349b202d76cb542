// Int8, Int4, Bit2, Bit1. The room holds frames of the regular layout, to move encoded blocks of a payload
// through, or for planes before or behind their stage; then what comes before raw blocks; then the stage's
// own.
#include "codec/cuda/codec_family.h"

namespace geocomm::codec::cuda {
namespace {

using core::Status;

bool has_stage(const CodecSpec& spec) {
  return spec.entropy != Entropy::None;
}

struct BlockSpace {
  std::uint32_t* raw_before;  // decoding: see Decode
  HuffmanSpace huffman;
};

BlockSpace space_of(const CodecSpec& spec, const PayloadPlan& plan, Direction direction, SpaceCutter& room) {
  const bool is_moved = plan.frames > 1 && plan.slots == nullptr;
  if (is_moved || has_stage(spec)) room.take<std::uint8_t>(plan.bytes());
  BlockSpace space{room.take<std::uint32_t>(plan.blocks()), {}};
  if (has_stage(spec)) {
    space.huffman = take_huffman_space(plan.frames, plan.largest().bytes - plan.largest().codes_at,
                                       direction == Direction::Decode, room);
  }
  return space;
}

std::size_t room_bytes(const CodecSpec& spec, core::DType, const PayloadPlan& plan, Direction direction) {
  SpaceCutter room;
  space_of(spec, plan, direction, room);
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
  if (!has_stage(run.spec)) {
    GEOCOMM_RETURN_IF_ERROR(quantize(run, blocks));
    GEOCOMM_RETURN_IF_ERROR(lay_out_frames(run.layout(FrameSizes::Blocks), run.stream));
    GEOCOMM_RETURN_IF_ERROR(move_frames(blocks.dst, plan, workspace, run.stream));
    return write_raw_blocks(run.dtype, blocks, run.stream);
  }
  SpaceCutter room(workspace.room);
  const HuffmanSpace space = space_of(run.spec, plan, Direction::Encode, room).huffman;
  BlockEncode before_stage = blocks;
  before_stage.staged = workspace.room;
  GEOCOMM_RETURN_IF_ERROR(quantize(run, before_stage));
  GEOCOMM_RETURN_IF_ERROR(encode_stage(plan, workspace, space, run.stream));
  LayoutArgs layout = run.layout(FrameSizes::StagedBlocks);
  layout.planes = space.planes;
  GEOCOMM_RETURN_IF_ERROR(lay_out_frames(layout, run.stream));
  GEOCOMM_RETURN_IF_ERROR(write_staged_frames(blocks, space, run.stream));
  return write_raw_blocks(run.dtype, blocks, run.stream);
}

// With what its room holds.
Decode with_room(const CodecSpec& spec, const Decode& all, const Decode& part, HuffmanSpace* huffman) {
  Decode args = part;
  SpaceCutter room(all.workspace.room);
  const BlockSpace space = space_of(spec, all.plan, Direction::Decode, room);
  args.raw_before = space.raw_before;
  if (has_stage(spec)) args.staged = all.workspace.room;
  if (huffman != nullptr) *huffman = space.huffman;
  return args;
}

Status check(const DecodeRun& run) {
  HuffmanSpace huffman;
  const Decode args = with_room(run.spec, run.args, run.args, &huffman);
  if (has_stage(run.spec)) GEOCOMM_RETURN_IF_ERROR(decode_stage(args, huffman, run.stream));
  return check_blocks(run.spec.id, args, run.stream);
}

Status put(const DecodeRun& run) {
  return decode_blocks(run.spec.id, with_room(run.spec, run.args, run.part(), nullptr), run.stream);
}

}  // namespace

const CodecFamily kBlockFamily{true, true, room_bytes, encode, check, put};

}  // namespace geocomm::codec::cuda
