// Where frames lie once it is known which of them are larger than usual, and their way there.
#include "codec/cuda/block_scan.cuh"
#include "codec/cuda/device.h"
#include "codec/cuda/kernels.h"

namespace geocomm::codec::cuda {
namespace {

constexpr unsigned kLayoutThreads = 256;
constexpr unsigned kMoveThreads = 256;
constexpr std::uint64_t kUnit = 16;  // bytes that a thread moves at once

__global__ void clear(PayloadPlan plan, Workspace workspace) {
  const std::uint64_t index = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index == 0) *workspace.state = {0, plan.frames, {0, 0}};
  if (index < plan.frames) workspace.records[index] = {};
}

__device__ std::uint64_t payload_bytes_of(const LayoutArgs& args, std::uint32_t frame) {
  const FrameExtent extent = args.plan.extent(frame);
  FrameRecord& record = args.workspace.records[frame];
  const std::uint64_t element_bytes = args.plan.element_bytes;
  switch (args.sizes) {
    case FrameSizes::Casts:
      record.is_plain = record.raw_elements != 0 ? 1 : 0;
      return record.is_plain != 0 ? extent.elements * element_bytes : extent.bytes;
    case FrameSizes::Blocks:
      record.raw_at = extent.bytes;
      break;
    case FrameSizes::StagedBlocks:
      break;
    case FrameSizes::Known:
      return record.payload_bytes;
  }
  return record.raw_at + record.raw_elements * element_bytes;
}

__global__ void __launch_bounds__(kLayoutThreads) lay_out(LayoutArgs args) {
  std::uint64_t end = 0;
  for (std::uint32_t first = 0; first < args.plan.frames; first += kLayoutThreads) {
    const std::uint32_t frame = first + threadIdx.x;
    const bool is_there = frame < args.plan.frames;
    const std::uint64_t payload_bytes = is_there ? payload_bytes_of(args, frame) : 0;
    const std::uint64_t bytes = is_there ? sizeof(FrameHeader) + payload_bytes : 0;
    std::uint64_t total;
    const std::uint64_t offset = end + sum_before<kLayoutThreads>(bytes, total);
    end += total;
    if (!is_there) continue;
    FrameRecord& record = args.workspace.records[frame];
    record.offset = offset;
    record.payload_bytes = payload_bytes;
    if (offset != frame * args.plan.frame_stride) atomicMin(&args.workspace.state->first_moved, frame);
  }
  if (threadIdx.x == 0) *args.bytes_out = end;
}

// The bytes [begin, begin + kUnit) of the regular layout, cut at its end.
__device__ void copy_unit(const std::uint8_t* from, std::uint8_t* to, std::uint64_t begin,
                          std::uint64_t end) {
  if (end - begin >= kUnit) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  } else {
    for (std::uint64_t i = 0; i < end - begin; ++i) to[i] = from[i];
  }
}

template <bool kToWorkspace>
__global__ void __launch_bounds__(kMoveThreads)
    move(std::uint8_t* dst, PayloadPlan plan, Workspace workspace) {
  const std::uint32_t first = workspace.state->first_moved;
  if (first == plan.frames) return;
  const std::uint64_t end = plan.bytes();
  const std::uint64_t threads = std::uint64_t{gridDim.x} * kMoveThreads;
  std::uint64_t at =
      first * plan.frame_stride + (std::uint64_t{blockIdx.x} * kMoveThreads + threadIdx.x) * kUnit;
  for (; at < end; at += threads * kUnit) {
    if constexpr (kToWorkspace) {
      copy_unit(dst + at, workspace.room + at, at, end);
    } else {
      const std::uint64_t frame = plan.frames == 1 ? 0 : at / plan.frame_stride;
      const std::uint64_t last = plan.frames - 1;
      const std::uint64_t of = frame < last ? frame : last;
      std::uint8_t* to = dst + workspace.records[of].offset + (at - of * plan.frame_stride);
      copy_unit(workspace.room + at, to, at, end);
    }
  }
}

}  // namespace

core::Status clear_records(const PayloadPlan& plan, const Workspace& workspace, Stream stream) {
  return launch(clear, one_thread_each(plan.frames, kLayoutThreads), stream, plan, workspace);
}

core::Status lay_out_frames(const LayoutArgs& args, Stream stream) {
  return launch(lay_out, Grid{1, kLayoutThreads}, stream, args);
}

core::Status move_frames(std::uint8_t* dst, const PayloadPlan& plan, const Workspace& workspace,
                         Stream stream) {
  if (plan.frames == 1) return core::Status::ok();
  const std::uint64_t work = (plan.bytes() + kMoveThreads * kUnit - 1) / (kMoveThreads * kUnit);
  const Grid grid{persistent_blocks(work, 8), kMoveThreads};
  GEOCOMM_RETURN_IF_ERROR(launch(move<true>, grid, stream, dst, plan, workspace));
  return launch(move<false>, grid, stream, dst, plan, workspace);
}

}  // namespace geocomm::codec::cuda
