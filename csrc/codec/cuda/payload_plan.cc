#include "codec/cuda/payload_plan.h"

#include <algorithm>
#include <bit>

#include "codec/frames/payload_codec.h"
#include "codec/payload/payload.h"
#include "codec/quantizers/block/block_layout.h"

namespace geocomm::codec::cuda {
namespace {

// Of several frames of a batch: whole tiles and blocks of every kernel.
constexpr std::uint64_t kLeastFrameElements = 16384;

// Of the payload of a regular frame.
std::size_t regular_bytes(const CodecSpec& spec, core::DType dtype, std::size_t elements) {
  switch (spec.id) {
    case CodecId::Fp16:
    case CodecId::Bf16:
      return elements * sizeof(std::uint16_t);
    case CodecId::Int8:
    case CodecId::Int4:
    case CodecId::Bit2:
    case CodecId::Bit1: {
      const BlockLayout layout(spec.id, spec.block, dtype, elements);
      return layout.scale_bytes() + layout.plane_bytes();
    }
    case CodecId::TopK:
    case CodecId::Loco:
      return payload_codec(spec.id).bound(spec, dtype, elements);
    default:
      return elements * core::size_of(dtype);
  }
}

}  // namespace

FrameExtent extent_of(const CodecSpec& spec, core::DType dtype, std::uint64_t elements) {
  FrameExtent extent{};
  extent.elements = static_cast<std::uint32_t>(elements);
  if (spec.has_blocks()) {
    const BlockLayout layout(spec.id, spec.block, dtype, elements);
    extent.blocks = static_cast<std::uint32_t>(layout.blocks());
    extent.codes_at = static_cast<std::uint32_t>(layout.scale_bytes());
  }
  extent.bytes = static_cast<std::uint32_t>(regular_bytes(spec, dtype, elements));
  const SizeRange sizes = payload_codec(spec.id).possible_sizes(spec, dtype, elements);
  extent.least_bytes = static_cast<std::uint32_t>(sizes.least);
  extent.most_bytes = static_cast<std::uint32_t>(sizes.most);
  return extent;
}

namespace {

PayloadPlan plan_of(const CodecSpec& spec, core::DType dtype, std::uint64_t elements,
                    std::uint64_t frame_elements) {
  PayloadPlan plan{};
  plan.elements = elements;
  plan.frame_elements = frame_elements;
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

}  // namespace

PayloadPlan make_plan(const CodecSpec& spec, core::DType dtype, std::uint64_t elements, Framing framing) {
  return plan_of(spec, dtype, elements,
                 framing == Framing::Payload ? kPayloadFrameBytes / core::size_of(dtype)
                                             : std::max<std::uint64_t>(elements, 1));
}

PayloadPlan make_batch_plan(const CodecSpec& spec, core::DType dtype, std::uint64_t largest,
                            std::uint32_t frames) {
  // Several: a power of two, as the frames of a payload have, so that no tile and no block is in two of them.
  const std::uint64_t frame_elements = frames == 1 ? std::max<std::uint64_t>(largest, 1)
                                                   : std::bit_ceil(std::max(largest, kLeastFrameElements));
  PayloadPlan plan = plan_of(spec, dtype, frames == 1 ? largest : frames * frame_elements, frame_elements);
  plan.frame_stride = SpaceCutter::aligned(plan.frame_stride);
  return plan;
}

Workspace cut_workspace(const PayloadPlan& plan, bool is_batch, std::byte* workspace_dev) {
  SpaceCutter cutter(workspace_dev);
  auto* state = cutter.take<PayloadState>(1);
  auto* records = cutter.take<FrameRecord>(plan.frames);
  auto* slots = is_batch ? cutter.take<FrameSlot>(plan.frames) : nullptr;
  return {state, records, slots, cutter.rest()};
}

std::size_t bytes_of_records(const PayloadPlan& plan, bool is_batch) {
  return reinterpret_cast<std::uintptr_t>(cut_workspace(plan, is_batch, nullptr).room);
}

}  // namespace geocomm::codec::cuda
