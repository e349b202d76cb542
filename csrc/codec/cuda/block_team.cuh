// Blocks shared out to teams of warps, so that a lane has at most four rows of a block, in registers: of more
// than 512 elements to one warp per 512, else to one (of 64 elements two share a warp).
#pragma once

#include "codec/cuda/block_place.cuh"

namespace geocomm::codec::cuda {

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

}  // namespace geocomm::codec::cuda
