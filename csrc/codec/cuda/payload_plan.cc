#include "codec/cuda/payload_plan.h"

#include <algorithm>
#include <bit>

#include "codec/block_layout.h"
#include "codec/payload.h"

namespace geocomm::codec::cuda {
namespace {

constexpr std::size_t kAlignment = 16;

std::size_t rounded_up(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

FrameExtent extent_of(const CodecSpec& spec, core::DType dtype, std::uint64_t elements) {
  FrameExtent extent{static_cast<std::uint32_t>(elements), 0, 0, 0};
  if (spec.has_blocks()) {
    const BlockLayout layout(spec.id, spec.block, dtype, elements);
    extent.blocks = static_cast<std::uint32_t>(layout.blocks());
    extent.codes_at = static_cast<std::uint32_t>(layout.scale_bytes());
    extent.bytes = static_cast<std::uint32_t>(layout.scale_bytes() + layout.plane_bytes());
  } else {
    const std::size_t width = spec.id == CodecId::None ? core::size_of(dtype) : sizeof(std::uint16_t);
    extent.bytes = static_cast<std::uint32_t>(elements * width);
  }
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
  std::byte* records = workspace_dev + rounded_up(sizeof(PayloadState));
  std::byte* shifted = records + rounded_up(plan.frames * sizeof(FrameRecord));
  return {reinterpret_cast<PayloadState*>(workspace_dev), reinterpret_cast<FrameRecord*>(records),
          reinterpret_cast<std::uint8_t*>(shifted)};
}

std::size_t bytes_of_workspace(const CodecSpec& spec, const PayloadPlan& plan) {
  const std::size_t records =
      rounded_up(sizeof(PayloadState)) + rounded_up(plan.frames * sizeof(FrameRecord));
  const bool has_room = spec.has_blocks() && (plan.frames > 1 || spec.entropy != Entropy::None);
  return records + (has_room ? rounded_up(plan.bytes()) : 0);
}

}  // namespace geocomm::codec::cuda
