// Which block a lane works on. A warp has one block, or two of 64 elements side by side; lane u of those that
// share a block has the elements 128 r + 4 u .. + 3 of it, for each row r. So the 128 partial sums of the
// format (element e joins sum e mod 128) are four registers in each lane.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"
#include "codec/cuda/element_access.cuh"
#include "codec/cuda/payload_plan.h"
#include "codec/quantizers/block/block_layout.h"

namespace geocomm::codec::cuda {

inline constexpr unsigned kBlockThreads = 256;  // of the kernels that take a warp per block
inline constexpr unsigned kBlockWarps = kBlockThreads / kWarp;
inline constexpr unsigned kRow = 128;

// Codes of one block in shared memory, with room for what packing reads behind them.
inline constexpr unsigned kStagedPad = 16;

struct BlockPlace {
  unsigned lanes;  // that share the block: 32 or 16
  unsigned u;      // which of them this is
  unsigned rows;
  unsigned index;   // of the block in its frame
  unsigned length;  // elements; 0: there is no such block
  std::uint32_t frame;
  std::uint32_t begin;  // element, of the frame

  __device__ __forceinline__ unsigned offset(unsigned row) const { return row * kRow + 4 * u; }
  // How many of the row's four elements there are.
  __device__ __forceinline__ unsigned count(unsigned row) const { return four_from(offset(row), length); }
};

// `warp`: of the whole grid. False for all lanes: there is nothing to do.
__device__ __forceinline__ bool find_block(const PayloadPlan& plan, std::uint64_t warp, BlockPlace& place) {
  const unsigned lane = threadIdx.x % kWarp;
  place.lanes = plan.block < kRow ? kWarp / 2 : kWarp;
  place.u = lane & (place.lanes - 1);
  place.rows = plan.block < kRow ? 1 : plan.block / kRow;
  const unsigned per_warp = kWarp / place.lanes;
  if (warp * per_warp >= plan.blocks()) return false;
  const std::uint64_t block = warp * per_warp + lane / place.lanes;
  std::uint32_t index = plan.frame_of_block(block);
  if (index >= plan.frames) index = plan.frames - 1;
  place.frame = plan.first_frame + index;
  place.index = static_cast<unsigned>(block - std::uint64_t{index} * plan.full.blocks);
  place.begin = place.index * plan.block;
  const std::uint32_t elements = plan.extent(place.frame).elements;
  const std::uint32_t left = place.begin < elements ? elements - place.begin : 0;
  place.length = left < plan.block ? left : plan.block;
  return true;
}

// Of a kernel that takes a warp per block.
inline std::uint64_t warps_of(const PayloadPlan& plan) {
  const std::uint64_t per_warp = plan.block < kRow ? 2 : 1;
  return (plan.blocks() + per_warp - 1) / per_warp;
}
inline Grid grid_of_warps(std::uint64_t warps) {
  return one_thread_each(warps * kWarp, kBlockThreads);
}

// Elements of a block that its frame has.
__device__ __forceinline__ std::uint32_t length_of_block(const PayloadPlan& plan, const FrameExtent& extent,
                                                         std::uint32_t block) {
  const std::uint32_t left = extent.elements - block * plan.block;
  return left < plan.block ? left : plan.block;
}

template <typename T, typename Combine>
__device__ __forceinline__ T reduce_lanes(T value, unsigned lanes, Combine combine) {
  if (lanes == kWarp) value = combine(value, __shfl_xor_sync(kFullMask, value, 16));
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kFullMask, value, distance));
  }
  return value;
}

// The sum of 128 partial sums, four in each lane: halves are added until one is left. Blocks of 64 elements
// have 64 of them.
__device__ __forceinline__ float fold(const Quad& sums, unsigned lanes) {
  float s[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    s[c] = reduce_lanes(sums.v[c], lanes, [](float a, float b) { return __fadd_rn(a, b); });
  }
  return __fadd_rn(__fadd_rn(s[0], s[2]), __fadd_rn(s[1], s[3]));
}

// How many of a frame's blocks before `index` are raw; for a whole warp, with one index. `stride`: bytes from
// one scale to the next.
__device__ __forceinline__ unsigned raw_blocks_before(const std::uint8_t* scales, unsigned index,
                                                      std::uint64_t stride = 2) {
  unsigned count = 0;
  for (unsigned i = threadIdx.x % kWarp; i < index; i += kWarp)
    count += load_u16(scales + i * stride) == kRawScale;
  return __reduce_add_sync(kFullMask, count);
}

}  // namespace geocomm::codec::cuda
