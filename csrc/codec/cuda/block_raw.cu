// What raw blocks carry: their elements as they are, one block after the other, behind the codes of the
// frame.
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/kernels.h"
#include "codec/cuda/plain_store.cuh"

namespace geocomm::codec::cuda {
namespace {

template <core::DType kType, bool kFeedback>
__global__ void __launch_bounds__(kBlockThreads) write_raw(BlockEncode args) {
  if (args.workspace.state->irregular == 0) return;
  const std::uint64_t warps = std::uint64_t{gridDim.x} * kBlockWarps;
  std::uint64_t warp = std::uint64_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
  BlockPlace place;
  for (; find_block(args.plan, warp, place); warp += warps) {
    const FrameRecord& record = args.workspace.records[place.frame];
    if (record.raw_elements == 0) continue;  // the same for the whole warp
    std::uint8_t* payload = args.dst + record.offset + sizeof(FrameHeader);
    const bool is_raw = place.length > 0 && load_u16(payload + 2 * place.index) == kRawScale;
    for (unsigned half = 0; half < kWarp / place.lanes; ++half) {
      const unsigned index = __shfl_sync(kFullMask, place.index, static_cast<int>(half * place.lanes));
      if (__shfl_sync(kFullMask, is_raw ? 1 : 0, static_cast<int>(half * place.lanes)) == 0) continue;
      const unsigned before = raw_blocks_before(payload, index);
      if (index != place.index) continue;
      write_raw_block<kType, kFeedback>(
          args, place,
          payload + record.raw_at + std::uint64_t{before} * args.plan.block * kElementBytes<kType>);
    }
  }
}

}  // namespace

core::Status write_raw_blocks(core::DType dtype, const BlockEncode& args, Stream stream) {
  const Grid grid{persistent_blocks(grid_of_warps(warps_of(args.plan)).blocks, 8), kBlockThreads};
  return with_values(dtype, args.residual, [&]<core::DType kType, bool kFeedback>() {
    return launch(write_raw<kType, kFeedback>, grid, stream, args);
  });
}

}  // namespace geocomm::codec::cuda
