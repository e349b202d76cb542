// What raw blocks carry: their elements as they are, one block after the other, behind the codes of the
// frame.
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/block_scan.cuh"
#include "codec/cuda/kernels.h"
#include "codec/cuda/plain_store.cuh"

namespace geocomm::codec::cuda {
namespace {

// A block of threads per frame looks at a scale each, and then goes through the raw blocks, a warp each.
template <core::DType kType, bool kFeedback>
__global__ void __launch_bounds__(kBlockThreads) write_raw(BlockEncode args) {
  __shared__ std::uint32_t indices[kBlockThreads];
  __shared__ std::uint32_t elements_before[kBlockThreads];
  const std::uint32_t frame = blockIdx.x;
  const FrameRecord& record = args.workspace.records[frame];
  if (record.raw_elements == 0) return;
  const FrameExtent extent = args.plan.extent(frame);
  std::uint8_t* payload = args.placed(frame) + sizeof(FrameHeader);
  const unsigned lane = threadIdx.x % kWarp;
  BlockPlace place{kWarp, lane, args.plan.block < kRow ? 1 : args.plan.block / kRow, 0, 0, frame, 0};
  std::uint32_t raw_elements = 0;
  for (std::uint32_t first = 0; first < extent.blocks; first += kBlockThreads) {
    const std::uint32_t index = first + threadIdx.x;
    const bool is_raw = index < extent.blocks && load_u16(payload + 2 * index) == kRawScale;
    std::uint32_t blocks;
    const std::uint32_t blocks_before = sum_before<kBlockThreads>(is_raw ? 1u : 0u, blocks);
    std::uint32_t elements;
    const std::uint32_t before =
        sum_before<kBlockThreads>(is_raw ? length_of_block(args.plan, extent, index) : 0u, elements);
    if (is_raw) {
      indices[blocks_before] = index;
      elements_before[blocks_before] = raw_elements + before;
    }
    __syncthreads();
    for (std::uint32_t raw = threadIdx.x / kWarp; raw < blocks; raw += kBlockWarps) {
      place.index = indices[raw];
      place.length = length_of_block(args.plan, extent, place.index);
      place.begin = place.index * args.plan.block;
      const std::uint64_t at = record.raw_at + std::uint64_t{elements_before[raw]} * kElementBytes<kType>;
      write_raw_block<kType, kFeedback>(args, place, payload + at);
    }
    __syncthreads();
    raw_elements += elements;
  }
}

}  // namespace

core::Status write_raw_blocks(core::DType dtype, const BlockEncode& args, Stream stream) {
  return with_values(dtype, args.residual, [&]<core::DType kType, bool kFeedback>() {
    return launch(write_raw<kType, kFeedback>, Grid{args.plan.frames, kBlockThreads}, stream, args);
  });
}

}  // namespace geocomm::codec::cuda
