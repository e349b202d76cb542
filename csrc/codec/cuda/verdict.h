// What is wrong with received bytes, as the device says it: the first fault of the first frame that has one.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

namespace geocomm::codec::cuda {

enum class Fault : std::uint8_t {
  None = 0,
  Truncated,
  Magic,
  Version,
  HeaderCrc,
  Codec,
  Elements,
  Size,
  Trailing,
  PayloadCrc,
  Scale,
  Code,
  RawSize,
  Plane,
  SectionSize,
  Bitmap,
  TopKHead,
  Places,
  LocoHead
};

// A verdict: 0, or the complement of the frame's number, then the fault, so that the larger one has the
// smaller frame.
constexpr int kFaultBits = 8;
inline Fault fault_of(std::uint64_t verdict) {
  return static_cast<Fault>(verdict & ((1u << kFaultBits) - 1));
}
inline std::uint32_t frame_of(std::uint64_t verdict) {
  return ~static_cast<std::uint32_t>(verdict >> kFaultBits);
}

#if defined(__CUDACC__) || defined(GEOCOMM_SIMT)
// Whether there is one. Other blocks report meanwhile, so that threads which read it for themselves may leave
// a kernel in which their neighbours go on: not where a warp or a block meets again.
__device__ __forceinline__ bool is_over_for_thread(const std::uint64_t* verdict) {
  return *verdict != 0;
}
// For all lanes of the warp alike.
__device__ __forceinline__ bool is_over_for_warp(const std::uint64_t* verdict) {
  return __any_sync(~0u, *verdict != 0) != 0;
}
// For all threads of the block alike.
__device__ inline bool is_over_for_block(const std::uint64_t* verdict) {
  __shared__ bool over;
  if (threadIdx.x == 0) over = *verdict != 0;
  __syncthreads();
  return over;
}

__device__ __forceinline__ void report(std::uint64_t* verdict, Fault fault, std::uint32_t frame) {
  const std::uint64_t word =
      static_cast<std::uint64_t>(~frame) << kFaultBits | static_cast<std::uint64_t>(fault);
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  atomicMax(reinterpret_cast<unsigned long long*>(verdict), static_cast<unsigned long long>(word));
}
#endif

}  // namespace geocomm::codec::cuda
