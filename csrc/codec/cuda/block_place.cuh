// Where the elements of a block lie: for a warp, and for a team of warps; and raw ones as they are.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"
#include "codec/cuda/elements.cuh"
#include "codec/cuda/payload_plan.h"
#include "codec/quantizers/block/block_layout.h"

namespace geocomm::codec::cuda {

// Which block a lane works on. A warp has one block, or two of 64 elements side by side; lane u of those that
// share a block has the elements 128 r + 4 u .. + 3 of it, for each row r. So the 128 partial sums of the
// format (element e joins sum e mod 128) are four registers in each lane.

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

// Goes through the raw ones of a frame's blocks, by a block of kBlockThreads threads: these look at one each,
// and warps then take those that are raw. is_raw(index), by a thread; take(index, before), by a warp: so many
// raw ones are before it.
template <typename IsRaw, typename Take>
__device__ __forceinline__ void for_raw_blocks(std::uint32_t blocks, const IsRaw& is_raw, const Take& take) {
  __shared__ std::uint32_t indices[kBlockThreads];
  std::uint32_t before = 0;
  for (std::uint32_t first = 0; first < blocks; first += kBlockThreads) {
    const std::uint32_t index = first + threadIdx.x;
    const bool raw = index < blocks && is_raw(index);
    std::uint32_t found;
    const std::uint32_t place = sum_before<kBlockThreads>(raw ? 1u : 0u, found);
    if (raw) indices[place] = index;
    __syncthreads();
    for (std::uint32_t r = threadIdx.x / kWarp; r < found; r += kBlockWarps) take(indices[r], before + r);
    __syncthreads();
    before += found;
  }
}

// Blocks shared out to teams of warps, so that a lane has at most four rows of a block, in registers: of more
// than 512 elements to one warp per 512, else to one (of 64 elements two share a warp).

inline constexpr unsigned kTeamRows = 4;  // of a warp, at most
inline constexpr unsigned kTeamElements = kTeamRows * kRow;

struct TeamPlace {
  BlockPlace block;    // length 0: there is nothing to do
  unsigned warps = 1;  // of the team; the same in the whole grid
  unsigned warp = 0;   // which of them this is
  unsigned rows = 1;   // of this warp

  __device__ __forceinline__ unsigned offset(unsigned row) const {
    return block.offset(warp * kTeamRows + row);
  }
  __device__ __forceinline__ unsigned count(unsigned row) const {
    return block.count(warp * kTeamRows + row);
  }
  // Of the block's warps that lie in this block of threads.
  __device__ __forceinline__ unsigned first_warp() const { return threadIdx.x / kWarp - warp; }
};

GEOCOMM_HOST_DEVICE inline unsigned warps_of_team(std::uint32_t block) {
  return block > kTeamElements ? block / kTeamElements : 1;
}

__device__ __forceinline__ TeamPlace find_team(const PayloadPlan& plan) {
  TeamPlace place;
  const std::uint64_t warp = std::uint64_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
  place.warps = warps_of_team(plan.block);
  place.warp = static_cast<unsigned>(warp % place.warps);
  place.block = {};
  find_block(plan, warp / place.warps, place.block);
  place.rows = place.block.rows < kTeamRows ? place.block.rows : kTeamRows;
  return place;
}

inline Grid grid_of_teams(const PayloadPlan& plan) {
  return grid_of_warps(warps_of(plan) * warps_of_team(plan.block));
}

// Elements into frames as they are, plus the residual where there is one, at any address: raw blocks, frames
// of None between others. Both are rare: bytes will do.

template <core::DType kType>
__device__ __forceinline__ void store_bytes(std::uint8_t* to, std::uint32_t bits) {
#pragma unroll
  for (unsigned i = 0; i < kElementBytes<kType>; ++i) to[i] = static_cast<std::uint8_t>(bits >> 8 * i);
}

template <core::DType kType>
__device__ __forceinline__ std::uint32_t element_bits(const std::uint8_t* src, std::uint64_t element) {
  if constexpr (kType == core::DType::Float32) return reinterpret_cast<const std::uint32_t*>(src)[element];
  return reinterpret_cast<const std::uint16_t*>(src)[element];
}

// `count` elements, at most four; updates the residual.
template <core::DType kType, bool kFeedback>
__device__ void write_plain(const std::uint8_t* src, const ResidualView& residual, std::uint64_t element,
                            unsigned count, std::uint8_t* to) {
  if constexpr (kFeedback) {
    const Quad values = load_values<kType, true>(src, residual, element, count);
    Quad carried = values;
    for (unsigned c = 0; c < count; ++c) {
      if constexpr (kType == core::DType::Float32) {
        store_bytes<kType>(to + 4 * c, __float_as_uint(values.v[c]));
      } else {
        const std::uint16_t bits = narrow_saturated<kType>(values.v[c]);
        store_bytes<kType>(to + 2 * c, bits);
        carried.v[c] = widen<kType>(bits);
      }
    }
    store_residual(residual, element, values, carried, count);
  } else {
    for (unsigned c = 0; c < count; ++c) {
      store_bytes<kType>(to + c * kElementBytes<kType>, element_bits<kType>(src, element + c));
    }
  }
}

// A block, or what its lanes have of it.
template <core::DType kType, bool kFeedback>
__device__ void write_raw_block(const ElementEncode& args, const BlockPlace& place, std::uint8_t* to) {
  const std::uint8_t* src = args.elements(place.frame);
  const ResidualView residual = args.residual_of(place.frame);
  for (unsigned row = 0; row < place.rows; ++row) {
    const unsigned offset = place.offset(row);
    write_plain<kType, kFeedback>(src, residual, place.begin + offset, place.count(row),
                                  to + std::uint64_t{offset} * kElementBytes<kType>);
  }
}

}  // namespace geocomm::codec::cuda
