// Checks of received blocks that come before anything is written: scales, and that the raw blocks take just
// what the frame has.
#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/kernels.h"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {
namespace {

template <typename Coder>
__global__ void __launch_bounds__(kBlockThreads) check_scales(Decode args) {
  if (is_over_for_thread(args.verdict)) return;
  const std::uint64_t threads = std::uint64_t{gridDim.x} * kBlockThreads;
  const std::uint64_t blocks = args.plan.blocks();
  std::uint64_t block = std::uint64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  for (; block < blocks; block += threads) {
    const std::uint32_t frame = args.plan.frame_of_block(block);
    const std::uint64_t index = block - std::uint64_t{frame} * args.plan.full.blocks;
    FrameRecord& record = args.workspace.records[frame];
    if (record.is_plain != 0) continue;
    const std::uint32_t scale = load_u16(args.payload + record.offset + sizeof(FrameHeader) + 2 * index);
    if (scale == kRawScale) {
      const std::uint64_t left = args.plan.extent(frame).elements - index * args.plan.block;
      atomicAdd(&record.raw_elements,
                left < args.plan.block ? static_cast<std::uint32_t>(left) : args.plan.block);
    } else if (!is_valid_scale<Coder::kId>(scale)) {
      report(args.verdict, Fault::Scale, frame);
    }
  }
}

__global__ void __launch_bounds__(kBlockThreads) check_sizes(Decode args) {
  const std::uint64_t frame = std::uint64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (frame >= args.plan.frames || is_over_for_thread(args.verdict)) return;
  const FrameRecord& record = args.workspace.records[frame];
  if (record.is_plain != 0) return;
  const std::uint64_t expected = record.raw_at + std::uint64_t{record.raw_elements} * args.plan.element_bytes;
  if (record.payload_bytes != expected)
    report(args.verdict, Fault::RawSize, static_cast<std::uint32_t>(frame));
}

template <typename Coder>
core::Status check(const Decode& args, Stream stream) {
  const std::uint64_t scales = one_thread_each(args.plan.blocks(), kBlockThreads).blocks;
  GEOCOMM_RETURN_IF_ERROR(
      launch(check_scales<Coder>, Grid{persistent_blocks(scales, 8), kBlockThreads}, stream, args));
  return launch(check_sizes, one_thread_each(args.plan.frames, kBlockThreads), stream, args);
}

}  // namespace

core::Status check_blocks(CodecId id, const Decode& args, Stream stream) {
  return with_coder(id, [&]<typename Coder>() { return check<Coder>(args, stream); });
}

}  // namespace geocomm::codec::cuda
