// Sums, and what is like them, over the threads of a block; all threads of the block call these.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"

namespace geocomm::codec::cuda {

// `combine` of the values of the threads before this one, in order from T{} on; `total`: of all threads.
template <unsigned kThreads, typename T, typename Combine>
__device__ __forceinline__ T combine_before(T value, T& total, Combine combine) {
  __shared__ T of_warps[kThreads / kWarp];
  const unsigned lane = threadIdx.x % kWarp;
  T upto = value;
#pragma unroll
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const T other = __shfl_up_sync(kFullMask, upto, distance);
    if (lane >= distance) upto = combine(other, upto);
  }
  const T lanes_before = __shfl_up_sync(kFullMask, upto, 1);
  __syncthreads();
  if (lane == kWarp - 1) of_warps[threadIdx.x / kWarp] = upto;
  __syncthreads();
  T before{};
  total = T{};
  for (unsigned warp = 0; warp < kThreads / kWarp; ++warp) {
    if (warp < threadIdx.x / kWarp) before = combine(before, of_warps[warp]);
    total = combine(total, of_warps[warp]);
  }
  return lane == 0 ? before : combine(before, lanes_before);
}

// Of all threads, in whatever order, from T{} on.
template <unsigned kThreads, typename T, typename Combine>
__device__ __forceinline__ T combine_all(T value, Combine combine) {
  __shared__ T of_warps[kThreads / kWarp];
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kFullMask, value, distance));
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  T all{};
  for (unsigned warp = 0; warp < kThreads / kWarp; ++warp) all = combine(all, of_warps[warp]);
  return all;
}

template <unsigned kThreads, typename T>
__device__ __forceinline__ T sum_before(T value, T& total) {
  return combine_before<kThreads>(value, total, [](T a, T b) { return static_cast<T>(a + b); });
}

}  // namespace geocomm::codec::cuda
