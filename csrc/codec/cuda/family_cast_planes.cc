// Fp16 and Bf16 with a stage.
#include "codec/cuda/cast_planes.h"
#include "codec/cuda/codec_family.h"

namespace geocomm::codec::cuda {
namespace {

using core::Status;

bool is_supported(const CodecSpec& spec) {
  return spec.entropy == Entropy::Huffman;
}

SectionShape shape_of(const PayloadPlan& plan) {
  SectionShape shape{kCastSections, 1u << kHighBytes, {}};
  shape.bytes[kHighBytes] = plan.largest().elements;
  shape.bytes[kLowBytes] = plan.largest().elements;
  return shape;
}

std::size_t room_bytes(const CodecSpec&, core::DType, const PayloadPlan& plan) {
  return section_space_bytes(shape_of(plan), plan, true);
}

Status encode(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  const SectionSpace space = cut_section_space(shape_of(input.plan), input.plan, true, input.workspace.room);
  // A frame that the cast cannot carry leaves the residual to its frame of None.
  if (input.residual.data != nullptr) {
    GEOCOMM_RETURN_IF_ERROR(encode_casts(run.spec.id, run.dtype, CastPass::Check, input, run.stream));
  }
  GEOCOMM_RETURN_IF_ERROR(split_casts(run.spec.id, run.dtype, input, space, run.stream));
  return place_sections(run, space, false);
}

Status decode(const DecodeRun& run) {
  const PayloadPlan& plan = run.args.plan;
  const SectionSpace space = cut_section_space(shape_of(plan), plan, true, run.args.workspace.room);
  GEOCOMM_RETURN_IF_ERROR(name_cast_sections(plan, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(walk_sections(run, space, kHighBytes, kCastSections));
  GEOCOMM_RETURN_IF_ERROR(join_casts(run.spec.id, run.args, space, run.stream));
  return decode_plain_frames(run.args, run.stream);
}

}  // namespace

const CodecFamily kCastPlaneFamily{is_supported, room_bytes, encode, decode};

}  // namespace geocomm::codec::cuda
