// Sums over the threads of a block.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"

namespace geocomm::codec::cuda {

// The sum of `value` over the threads before this one, and over all; all threads of the block call it.
template <unsigned kThreads, typename T>
__device__ __forceinline__ T sum_before(T value, T& total) {
  __shared__ T of_warps[kThreads / kWarp];
  const unsigned lane = threadIdx.x % kWarp;
  T sum = value;
#pragma unroll
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const T other = __shfl_up_sync(kFullMask, sum, distance);
    if (lane >= distance) sum += other;
  }
  __syncthreads();
  if (lane == kWarp - 1) of_warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  T before = 0;
  total = 0;
  for (unsigned warp = 0; warp < kThreads / kWarp; ++warp) {
    if (warp < threadIdx.x / kWarp) before += of_warps[warp];
    total += of_warps[warp];
  }
  return before + sum - value;
}

}  // namespace geocomm::codec::cuda
