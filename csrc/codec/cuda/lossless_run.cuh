// A warp's run of elements, in rows of four for each lane.
#pragma once

#include "codec/cuda/block_scan.cuh"
#include "codec/cuda/device.h"
#include "codec/cuda/lossless_stages.h"

namespace geocomm::codec::cuda {

inline constexpr unsigned kRunThreads = 256;
inline constexpr unsigned kRunWarps = kRunThreads / kWarp;
inline constexpr unsigned kRunRow = 4 * kWarp;

struct RunPlace {
  std::uint32_t frame;
  std::uint32_t first;   // element, in the frame
  std::uint32_t length;  // elements
  std::uint64_t slot;    // of the run

  // Of a row's elements, this lane's.
  __device__ __forceinline__ unsigned at(unsigned row) const {
    return row * kRunRow + 4 * (threadIdx.x % kWarp);
  }
  __device__ __forceinline__ unsigned count(unsigned row) const { return four_from(at(row), length); }
  __device__ __forceinline__ unsigned rows() const { return (length + kRunRow - 1) / kRunRow; }
};

// False for the whole warp: there is none.
__device__ __forceinline__ bool find_run(const PayloadPlan& plan, const LosslessSpace& space,
                                         RunPlace& place) {
  place.slot = std::uint64_t{plan.first_frame} * space.runs_per_frame +
               std::uint64_t{blockIdx.x} * kRunWarps + threadIdx.x / kWarp;
  place.frame = static_cast<std::uint32_t>(place.slot / space.runs_per_frame);
  if (place.frame >= plan.first_frame + plan.frames) return false;
  place.first = static_cast<std::uint32_t>(place.slot % space.runs_per_frame) * kRunElements;
  const std::uint32_t elements = plan.extent(place.frame).elements;
  if (place.first >= elements) return false;
  const std::uint32_t left = elements - place.first;
  place.length = left < kRunElements ? left : kRunElements;
  return true;
}

inline Grid grid_of_runs(const PayloadPlan& plan, const LosslessSpace& space) {
  return one_thread_each(std::uint64_t{plan.frames} * space.runs_per_frame * kWarp, kRunThreads);
}

// By a block of threads: makes the counts of a frame's runs those of what comes before, and gives their sum.
__device__ inline std::uint32_t scan_runs(const LosslessSpace& space, std::uint32_t frame,
                                          std::uint32_t elements) {
  const std::uint32_t runs = (elements + kRunElements - 1) / kRunElements;
  std::uint32_t sum = 0;
  for (std::uint32_t first = 0; first < runs; first += kRunThreads) {
    const std::uint32_t index = first + threadIdx.x;
    std::uint32_t& run = space.runs[std::uint64_t{frame} * space.runs_per_frame + index];
    std::uint32_t total;
    const std::uint32_t before = sum_before<kRunThreads>(index < runs ? run : 0u, total);
    if (index < runs) run = sum + before;
    sum += total;
  }
  return sum;
}

}  // namespace geocomm::codec::cuda
