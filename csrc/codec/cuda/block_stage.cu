// Between the frames of the block codecs and the Huffman stage: a plane per frame, decoded in the regular
// layout in the workspace, coded in the frame.
#include "codec/cuda/huffman_device.cuh"
#include "codec/cuda/huffman_heads.cuh"
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

// A warp per frame: where its plane is, and its heads. Behind a verdict, or in a frame of None, there is
// none.
__global__ void __launch_bounds__(kWarp) find_planes(Decode args, HuffmanSpace space) {
  const std::uint32_t frame = blockIdx.x;
  FrameRecord& record = args.workspace.records[frame];
  HuffmanPlane plane{nullptr, nullptr, 0, 0, frame};
  if (!is_over_for_warp(args.verdict) && record.is_plain == 0) {
    const FrameExtent extent = args.plan.extent(frame);
    plane.from = args.payload_of(frame) + extent.codes_at;
    plane.to = regular_codes(args.plan, args.workspace, frame);
    plane.bytes = extent.bytes - extent.codes_at;
    std::uint32_t coded_bytes = 0;
    const bool sound = read_plane_heads(plane.from, record.payload_bytes - extent.codes_at, plane.bytes,
                                        space.blocks + space.slot(frame, 0), coded_bytes);
    plane.coded_bytes = coded_bytes;
    if (threadIdx.x == 0) {
      record.raw_at = extent.codes_at + coded_bytes;
      if (!sound) report(args.verdict, Fault::Plane, frame);
    }
  }
  if (threadIdx.x == 0) space.planes[frame] = plane;
}

// A block of threads per frame.
__global__ void __launch_bounds__(kThreads) write_scales(ElementEncode args, HuffmanSpace space) {
  const std::uint32_t scale_bytes = args.plan.extent(blockIdx.x).codes_at;
  std::uint8_t* to = args.placed(blockIdx.x) + sizeof(FrameHeader);
  copy_bytes(to, regular_codes(args.plan, args.workspace, blockIdx.x) - scale_bytes, scale_bytes, threadIdx.x,
             kThreads);
  if (threadIdx.x == 0) space.planes[blockIdx.x].to = to + scale_bytes;
}

}  // namespace

core::Status encode_stage(const PayloadPlan& plan, const Workspace& workspace, const HuffmanSpace& space,
                          Stream stream) {
  const Grid frames = one_thread_each(plan.frames, kThreads);
  GEOCOMM_RETURN_IF_ERROR(launch(name_planes, frames, stream, plan, workspace, space));
  return encode_huffman_blocks(space, stream);
}

core::Status write_staged_frames(const ElementEncode& args, const HuffmanSpace& space, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(launch(write_scales, Grid{args.plan.frames, kThreads}, stream, args, space));
  return write_huffman_planes(space, stream);
}

core::Status decode_stage(const Decode& args, const HuffmanSpace& space, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(launch(find_planes, Grid{args.plan.frames, kWarp}, stream, args, space));
  return decode_huffman_planes(space, args.verdict, stream);
}

}  // namespace geocomm::codec::cuda
