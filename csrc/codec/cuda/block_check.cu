// Checks of received blocks that come before anything is written: scales, and that the raw blocks take just
// what the frame has. Where each of these has its elements is found on the way.
#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/block_scan.cuh"
#include "codec/cuda/kernels.h"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {
namespace {

// A block of threads per frame.
template <typename Coder>
__global__ void __launch_bounds__(kBlockThreads) check(Decode args) {
  if (is_over_for_block(args.verdict)) return;
  const std::uint32_t frame = blockIdx.x;
  const FrameRecord& record = args.workspace.records[frame];
  if (record.is_plain != 0) return;
  const FrameExtent extent = args.plan.extent(frame);
  const std::uint8_t* scales = args.payload_of(frame);
  std::uint32_t raw_elements = 0;
  for (std::uint32_t first = 0; first < extent.blocks; first += kBlockThreads) {
    const std::uint32_t index = first + threadIdx.x;
    const bool is_there = index < extent.blocks;
    const std::uint32_t scale = is_there ? load_u16(scales + 2 * index) : kMinScaleBits;
    const bool is_raw = scale == kRawScale;
    if (!is_raw && !is_valid_scale<Coder::kId>(scale)) report(args.verdict, Fault::Scale, frame);
    std::uint32_t total;
    const std::uint32_t before =
        sum_before<kBlockThreads>(is_raw ? length_of_block(args.plan, extent, index) : 0u, total);
    if (is_raw) args.raw_before[args.plan.slot_of_block(frame, index)] = raw_elements + before;
    raw_elements += total;
  }
  const std::uint64_t expected = record.raw_at + std::uint64_t{raw_elements} * args.plan.element_bytes;
  if (threadIdx.x == 0 && record.payload_bytes != expected) report(args.verdict, Fault::RawSize, frame);
}

}  // namespace

core::Status check_blocks(CodecId id, const Decode& args, Stream stream) {
  return with_coder(id, [&]<typename Coder>() {
    return launch(check<Coder>, Grid{args.plan.frames, kBlockThreads}, stream, args);
  });
}

}  // namespace geocomm::codec::cuda
