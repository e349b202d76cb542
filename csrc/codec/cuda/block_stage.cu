// Between the frames of the block codecs and the Huffman stage: a plane per frame, decoded in the regular
// layout in the workspace, coded in the frame.
#include "codec/cuda/huffman_device.cuh"
#include "codec/cuda/kernels.h"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {
namespace {

constexpr unsigned kThreads = 256;

__device__ std::uint8_t* regular_codes(const PayloadPlan& plan, const Workspace& workspace,
                                       std::uint64_t frame) {
  return workspace.room + frame * plan.frame_stride + sizeof(FrameHeader) + plan.extent(frame).codes_at;
}

__global__ void __launch_bounds__(kThreads)
    name_planes(PayloadPlan plan, Workspace workspace, HuffmanSpace space) {
  const std::uint32_t frame = blockIdx.x * kThreads + threadIdx.x;
  if (frame >= plan.frames) return;
  const FrameExtent extent = plan.extent(frame);
  space.planes[frame] = {regular_codes(plan, workspace, frame), nullptr, 0, extent.bytes - extent.codes_at,
                         frame};
}

// Behind a verdict, or in a frame of None, there is no plane.
__global__ void __launch_bounds__(kThreads) find_planes(Decode args, HuffmanSpace space) {
  const std::uint32_t frame = blockIdx.x * kThreads + threadIdx.x;
  if (frame >= args.plan.frames) return;
  HuffmanPlane& plane = space.planes[frame];
  plane = {nullptr, nullptr, 0, 0, frame};
  if (is_over_for_thread(args.verdict)) return;
  const FrameRecord& record = args.workspace.records[frame];
  if (record.is_plain != 0) return;
  const FrameExtent extent = args.plan.extent(frame);
  plane.from = args.payload + record.offset + sizeof(FrameHeader) + extent.codes_at;
  plane.to = regular_codes(args.plan, args.workspace, frame);
  plane.coded_bytes = record.payload_bytes - extent.codes_at;
  plane.bytes = extent.bytes - extent.codes_at;
}

__global__ void __launch_bounds__(kThreads)
    note_sizes(PayloadPlan plan, Workspace workspace, HuffmanSpace space) {
  const std::uint32_t frame = blockIdx.x * kThreads + threadIdx.x;
  if (frame >= plan.frames) return;
  workspace.records[frame].raw_at = plan.extent(frame).codes_at + space.planes[frame].coded_bytes;
}

// A block of threads per frame.
__global__ void __launch_bounds__(kThreads)
    write_scales(std::uint8_t* dst, PayloadPlan plan, Workspace workspace, HuffmanSpace space) {
  const std::uint32_t scale_bytes = plan.extent(blockIdx.x).codes_at;
  std::uint8_t* to = dst + workspace.records[blockIdx.x].offset + sizeof(FrameHeader);
  copy_bytes(to, regular_codes(plan, workspace, blockIdx.x) - scale_bytes, scale_bytes, threadIdx.x,
             kThreads);
  if (threadIdx.x == 0) space.planes[blockIdx.x].to = to + scale_bytes;
}

}  // namespace

core::Status encode_stage(const PayloadPlan& plan, const Workspace& workspace, const HuffmanSpace& space,
                          Stream stream) {
  const Grid frames = one_thread_each(plan.frames, kThreads);
  GEOCOMM_RETURN_IF_ERROR(launch(name_planes, frames, stream, plan, workspace, space));
  GEOCOMM_RETURN_IF_ERROR(encode_huffman_blocks(space, stream));
  return launch(note_sizes, frames, stream, plan, workspace, space);
}

core::Status write_staged_frames(std::uint8_t* dst, const PayloadPlan& plan, const Workspace& workspace,
                                 const HuffmanSpace& space, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(
      launch(write_scales, Grid{plan.frames, kThreads}, stream, dst, plan, workspace, space));
  return write_huffman_planes(space, stream);
}

core::Status decode_stage(const Decode& args, const HuffmanSpace& space, Stream stream) {
  const Grid grid = one_thread_each(args.plan.frames, kThreads);
  GEOCOMM_RETURN_IF_ERROR(launch(find_planes, grid, stream, args, space));
  GEOCOMM_RETURN_IF_ERROR(read_huffman_heads(space, args.verdict, stream));
  GEOCOMM_RETURN_IF_ERROR(launch(note_sizes, grid, stream, args.plan, args.workspace, space));
  return decode_huffman_planes(space, args.verdict, stream);
}

}  // namespace geocomm::codec::cuda
