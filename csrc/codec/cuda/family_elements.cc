// None; Fp16 and Bf16 without a stage.
#include "codec/cuda/codec_family.h"

namespace geocomm::codec::cuda {
namespace {

using core::Status;

std::size_t room_bytes(const CodecSpec&, core::DType, const PayloadPlan&, Direction) {
  return 0;
}

Status encode(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  const bool has_residual = input.residual.data != nullptr;
  if (run.spec.id == CodecId::None) {
    GEOCOMM_RETURN_IF_ERROR(has_residual ? encode_plain_sums(run.dtype, input, run.stream)
                                         : copy_into_frames(input, run.stream));
    return lay_out_frames(run.layout(FrameSizes::Blocks), run.stream);
  }
  // A frame that a cast cannot carry leaves the residual to its frame of None, so with a residual the check
  // comes first. Without one the encoder checks on the way, and runs again in the rare case.
  const CastPass first = has_residual ? CastPass::Check : CastPass::Regular;
  GEOCOMM_RETURN_IF_ERROR(encode_casts(run.spec.id, run.dtype, first, input, run.stream));
  GEOCOMM_RETURN_IF_ERROR(lay_out_frames(run.layout(FrameSizes::Casts), run.stream));
  return encode_casts(run.spec.id, run.dtype, CastPass::Placed, input, run.stream);
}

// The headers say all.
Status check(const DecodeRun&) {
  return Status::ok();
}

Status put(const DecodeRun& run) {
  const Decode args = run.part();
  if (run.spec.id == CodecId::None &&
      (!core::is_compressible(args.dtype) || args.sink == sink_of(args.dtype))) {
    return copy_out_of_frames(args, run.stream);
  }
  return decode_elements(run.spec.id, args, run.stream);
}

}  // namespace

const CodecFamily kElementFamily{true, false, room_bytes, encode, check, put};

}  // namespace geocomm::codec::cuda
