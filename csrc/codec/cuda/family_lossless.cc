// Lossless. The room holds the sections, then the counts of the runs. Bitmap and lower halves are those of
// float32 alone.
#include <algorithm>

#include "codec/cuda/codec_family.h"
#include "codec/cuda/lossless_stages.h"
#include "codec/frames/bitmap.h"

namespace geocomm::codec::cuda {
namespace {

using core::DType;
using core::Status;

bool has_stage(const CodecSpec& spec) {
  return spec.entropy != Entropy::None;
}

bool is_supported(const CodecSpec& spec) {
  return spec.entropy != Entropy::Zstd;
}

SectionShape shape_of(DType dtype, const PayloadPlan& plan) {
  const std::uint32_t elements = plan.largest().elements;
  SectionShape shape{kLosslessSections, 1u << kHigh | 1u << kLow, {}};
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

std::uint32_t runs_of(std::uint32_t elements) {
  return (elements + kRunElements - 1) / kRunElements;
}
std::uint64_t run_count(const PayloadPlan& plan) {
  return std::uint64_t{plan.frames - 1} * runs_of(plan.full.elements) + runs_of(plan.last.elements);
}

std::size_t room_bytes(const CodecSpec& spec, DType dtype, const PayloadPlan& plan) {
  return section_space_bytes(shape_of(dtype, plan), plan, has_stage(spec)) +
         run_count(plan) * sizeof(std::uint32_t);
}

LosslessSpace space_of(const CodecSpec& spec, DType dtype, const PayloadPlan& plan,
                       const Workspace& workspace) {
  const SectionShape shape = shape_of(dtype, plan);
  std::uint8_t* runs = workspace.room + section_space_bytes(shape, plan, has_stage(spec));
  return {cut_section_space(shape, plan, has_stage(spec), workspace.room),
          reinterpret_cast<std::uint32_t*>(runs), std::max(runs_of(plan.largest().elements), 1u),
          run_count(plan)};
}

Status encode(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  const LosslessSpace space = space_of(run.spec, run.dtype, input.plan, input.workspace);
  GEOCOMM_RETURN_IF_ERROR(split_words(run.dtype, input, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(split_lower_halves(run.dtype, input, space, run.stream));
  return place_sections(run, space.sections, true);
}

Status decode(const DecodeRun& run) {
  const Decode& args = run.args;
  const LosslessSpace space = space_of(run.spec, args.dtype, args.plan, args.workspace);
  GEOCOMM_RETURN_IF_ERROR(name_lossless_sections(args, space, run.stream));
  if (args.dtype == DType::Float32) {
    GEOCOMM_RETURN_IF_ERROR(walk_sections(run, space.sections, kMode, kLowerHigh));
    GEOCOMM_RETURN_IF_ERROR(count_lower_halves(args, space, run.stream));
    GEOCOMM_RETURN_IF_ERROR(walk_sections(run, space.sections, kLowerHigh, kLosslessSections));
  } else {
    GEOCOMM_RETURN_IF_ERROR(walk_sections(run, space.sections, kMode, kLosslessSections));
  }
  GEOCOMM_RETURN_IF_ERROR(join_words(args, space, run.stream));
  return decode_plain_frames(args, run.stream);
}

}  // namespace

const CodecFamily kLosslessFamily{is_supported, room_bytes, encode, decode};

}  // namespace geocomm::codec::cuda
