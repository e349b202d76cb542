#include "codec/cuda/payload_plan.h"

#include <algorithm>
#include <bit>

#include "codec/cuda/space_cutter.h"
#include "codec/entropy/huffman/plane_format.h"
#include "codec/entropy/plane.h"
#include "codec/frames/payload_codec.h"
#include "codec/payload/payload.h"
#include "codec/quantizers/block/block_layout.h"
#include "codec/quantizers/loco/loco_format.h"
#include "codec/quantizers/top_k/top_k_format.h"
#include "codec/quantizers/top_k/top_k_values.h"

namespace geocomm::codec::cuda {
namespace {

std::size_t bound_of(const CodecSpec& spec, core::DType dtype, std::size_t elements) {
  return payload_codec(spec.id).bound(spec, dtype, elements);
}

// Frames of TopK do not tell their sender's settings: all elements may be chosen, in the largest form.
std::size_t most_of_top_k(Entropy stage, std::size_t elements) {
  std::size_t values = 0;
  for (const Values form : {Values::Fp32, Values::Bf16, Values::Int8, Values::Bit2}) {
    values = std::max(values, values_bound(form, stage, elements));
  }
  return sizeof(TopKHead) + plane_bound(stage, max_index_bytes(elements, elements)) + values;
}

FrameExtent extent_of(const CodecSpec& spec, core::DType dtype, std::uint64_t elements) {
  FrameExtent extent{};
  extent.elements = static_cast<std::uint32_t>(elements);
  const std::size_t plain = elements * core::size_of(dtype);
  const bool has_stage = spec.entropy != Entropy::None;
  std::size_t bytes = plain;
  std::size_t least = plain;
  std::size_t most = plain;
  if (spec.has_blocks()) {
    const BlockLayout layout(spec.id, spec.block, dtype, elements);
    extent.blocks = static_cast<std::uint32_t>(layout.blocks());
    extent.codes_at = static_cast<std::uint32_t>(layout.scale_bytes());
  }
  switch (spec.id) {
    case CodecId::None:
      break;
    case CodecId::Fp16:
    case CodecId::Bf16:
      bytes = elements * sizeof(std::uint16_t);
      least = has_stage ? elements : bytes;
      most = has_stage ? bound_of(spec, dtype, elements) : bytes;
      break;
    case CodecId::Int8:
    case CodecId::Int4:
    case CodecId::Bit2:
    case CodecId::Bit1: {
      // Blocks may be raw, and planes have heads.
      const std::size_t plane = BlockLayout(spec.id, spec.block, dtype, elements).plane_bytes();
      const std::size_t heads = has_stage ? huffman::kHeadBytes * huffman::block_count(plane) : 0;
      bytes = extent.codes_at + plane;
      least = (has_stage ? extent.codes_at : bytes) + heads;
      most = bytes + heads + plain;
      break;
    }
    case CodecId::DeadZone:
    case CodecId::BitPlanes:
      least = elements == 0 ? 0 : extent.codes_at + 1;
      most = elements == 0 ? 0 : bound_of(spec, dtype, elements);
      break;
    case CodecId::TopK:
      bytes = bound_of(spec, dtype, elements);
      least = sizeof(TopKHead);
      most = most_of_top_k(spec.entropy, elements);
      break;
    case CodecId::Loco:
      bytes = bound_of(spec, dtype, elements);
      least = LocoLayout(1, elements).bytes();
      most = LocoLayout(kLocoMaxK, elements).most_bytes();
      break;
    case CodecId::Lossless:
      least = 2;
      most = std::max<std::size_t>(plain, 1) - 1;
      break;
  }
  extent.bytes = static_cast<std::uint32_t>(bytes);
  extent.least_bytes = static_cast<std::uint32_t>(least);
  extent.most_bytes = static_cast<std::uint32_t>(most);
  return extent;
}

}  // namespace

PayloadPlan make_plan(const CodecSpec& spec, core::DType dtype, std::uint64_t elements, Framing framing) {
  PayloadPlan plan{};
  plan.elements = elements;
  plan.frame_elements = framing == Framing::Payload ? kPayloadFrameBytes / core::size_of(dtype)
                                                    : std::max<std::uint64_t>(elements, 1);
  plan.frames = static_cast<std::uint32_t>(
      std::max<std::uint64_t>((elements + plan.frame_elements - 1) / plan.frame_elements, 1));
  plan.element_bytes = static_cast<std::uint32_t>(core::size_of(dtype));
  plan.full = extent_of(spec, dtype, plan.frame_elements);
  plan.last = extent_of(spec, dtype, elements - (plan.frames - 1) * plan.frame_elements);
  plan.log2_elements = static_cast<std::uint32_t>(std::countr_zero(plan.frame_elements));
  plan.log2_blocks =
      plan.full.blocks == 0 ? 0 : static_cast<std::uint32_t>(std::countr_zero(plan.full.blocks));
  plan.frame_stride = sizeof(FrameHeader) + plan.full.bytes;
  if (spec.has_blocks()) {
    plan.block = spec.block;
    plan.block_code_bytes = static_cast<std::uint32_t>(
        BlockLayout(spec.id, spec.block, dtype, spec.block).code_bytes(spec.block));
  }
  return plan;
}

Workspace cut_workspace(const PayloadPlan& plan, std::byte* workspace_dev) {
  SpaceCutter cutter(workspace_dev);
  auto* state = cutter.take<PayloadState>(1);
  auto* records = cutter.take<FrameRecord>(plan.frames);
  return {state, records, cutter.rest()};
}

std::size_t bytes_of_records(const PayloadPlan& plan) {
  return reinterpret_cast<std::uintptr_t>(cut_workspace(plan, nullptr).room);
}

}  // namespace geocomm::codec::cuda
