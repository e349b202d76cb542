// Elements of one frame that a block of threads takes: in each of a few rounds four to a thread.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"

namespace geocomm::codec::cuda {

inline constexpr unsigned kElementThreads = 256;
inline constexpr unsigned kElementRounds = 4;
inline constexpr unsigned kTileElements = 4 * kElementThreads * kElementRounds;
static_assert(kPayloadFrameBytes / 4 % kTileElements == 0, "a tile lies in one frame");

struct ElementTile {
  std::uint32_t frame;
  std::uint32_t begin;     // element in the frame
  std::uint32_t elements;  // of the frame

  // This thread's four, in the frame, and how many of them there are.
  __device__ __forceinline__ std::uint32_t at(unsigned round) const {
    return begin + round * (4 * kElementThreads) + 4 * threadIdx.x;
  }
  __device__ __forceinline__ unsigned count(unsigned round) const { return four_from(at(round), elements); }
};

__device__ __forceinline__ ElementTile find_tile(const PayloadPlan& plan) {
  const std::uint64_t element = std::uint64_t{blockIdx.x} * kTileElements;
  const std::uint32_t index = plan.frame_of_element(element);
  const std::uint32_t frame = plan.first_frame + index;
  return {frame, static_cast<std::uint32_t>(element - index * plan.frame_elements),
          plan.extent(frame).elements};
}

inline Grid grid_of_tiles(const PayloadPlan& plan) {
  return {(plan.elements + kTileElements - 1) / kTileElements, kElementThreads};
}

}  // namespace geocomm::codec::cuda
