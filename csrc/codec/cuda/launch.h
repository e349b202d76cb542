// The one way in which kernels are started: cudaLaunchKernel() under nvcc. The tests compile the same files
// as C++, with a header in front that stands for the device (tests/cpp/cuda/simt.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#ifdef __CUDACC__
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include <set>
#endif

#include "codec/cuda/cuda_codec.h"
#include "codec/cuda/kernel_loading.h"
#include "core/status.h"

#ifdef __USE_FAST_MATH__
#error "kernels compiled with -use_fast_math give other bytes than the CPU: leave it out"
#endif

namespace geocomm::codec::cuda {

struct Grid {
  std::uint64_t blocks = 0;  // 0: nothing is started
  unsigned threads = 0;
  std::size_t shared_bytes = 0;  // dynamic, at most 48 KiB
};
constexpr Grid one_thread_each(std::uint64_t pieces, unsigned threads) {
  return {(pieces + threads - 1) / threads, threads};
}

#ifdef __CUDACC__
template <typename... Parameters>
core::Status launch(void (*kernel)(Parameters...), const Grid& grid, Stream stream, Parameters... arguments) {
  const auto* const function = reinterpret_cast<const void*>(kernel);
  // It says how this call went. cudaGetLastError() would take an older error of the program's for its own.
  cudaError_t error = cudaSuccess;
  if (LoadsOnly::is_on()) {
    cudaFuncAttributes attributes;
    error = cudaFuncGetAttributes(&attributes, function);
  } else if (grid.blocks > 0) {
    void* addresses[] = {&arguments...};
    error = cudaLaunchKernel(function, dim3(static_cast<unsigned>(grid.blocks)), dim3(grid.threads),
                             addresses, grid.shared_bytes, stream);
  }
  if (error == cudaSuccess) return core::Status::ok();
  (void)cudaGetLastError();  // told here, so that the program does not take it for its own
  return {core::StatusCode::Driver, std::string("CUDA refused a kernel: ") + cudaGetErrorString(error)};
}

// Multiprocessors of the current device: what a kernel that loops over its work is sized by.
inline unsigned multiprocessors() {
  int device = 0;
  int count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
  return static_cast<unsigned>(count);
}
#else
// For tests of what is loaded before it is started.
struct KernelsSeen {
  std::set<const void*> loaded, started;
  bool has_images = true;
  int until_refusal = -1;  // the launch after so many more is refused; below 0: none is
};
inline KernelsSeen& kernels_seen() {
  static KernelsSeen seen;
  return seen;
}

template <typename... Parameters>
core::Status launch(void (*kernel)(Parameters...), const Grid& grid, Stream, Parameters... arguments) {
  KernelsSeen& seen = kernels_seen();
  if (!seen.has_images) return {core::StatusCode::Driver, "no kernel image"};
  if (!LoadsOnly::is_on() && grid.blocks == 0) return core::Status::ok();
  if (seen.until_refusal >= 0 && seen.until_refusal-- == 0) return {core::StatusCode::Driver, "refused"};
  (LoadsOnly::is_on() ? seen.loaded : seen.started).insert(reinterpret_cast<const void*>(kernel));
  if (LoadsOnly::is_on()) return core::Status::ok();
  simt::launch([&] { kernel(arguments...); }, {static_cast<unsigned>(grid.blocks)}, {grid.threads},
               grid.shared_bytes);
  return core::Status::ok();
}

inline unsigned multiprocessors() {
  return 1;
}
#endif

// Blocks for `work` pieces, each block taking one after the other, that fill the device and no more.
inline std::uint64_t persistent_blocks(std::uint64_t work, unsigned blocks_per_multiprocessor) {
  const std::uint64_t most = std::uint64_t{multiprocessors()} * blocks_per_multiprocessor;
  return work < most ? work : most;
}

}  // namespace geocomm::codec::cuda

// Dynamic shared memory of a kernel, aligned to 16.
#ifdef __CUDACC__
#define GEOCOMM_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char geocomm_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(geocomm_dynamic_shared)
#else
#define GEOCOMM_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::geocomm::simt::dynamic_shared())
#endif
