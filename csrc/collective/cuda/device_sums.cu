#include "codec/cuda/device.h"
#include "collective/cuda/device_sums.h"

namespace geocomm::collective::cuda {
namespace {

using codec::cuda::Grid;
using codec::cuda::launch;
using codec::cuda::Quad;
using core::DType;

constexpr unsigned kThreads = 256;
constexpr unsigned kBlocksPerMultiprocessor = 8;

// a + b. A NaN is a's, else b's, made quiet, else what an x86 gives for an invalid operation.
__device__ __forceinline__ float add_as_host(float a, float b) {
  return codec::cuda::add_residual(a, 1.0f, b);
}

// Each thread takes four elements at a time.
template <typename Body>
__device__ __forceinline__ void for_quads(std::uint64_t count, Body&& body) {
  const std::uint64_t step = std::uint64_t{4} * kThreads * gridDim.x;
  for (std::uint64_t at = 4 * (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x); at < count; at += step) {
    body(at, count - at < 4 ? static_cast<unsigned>(count - at) : 4u);
  }
}

template <DType kType>
__device__ __forceinline__ Quad load(const std::uint8_t* base, std::uint64_t at, unsigned count) {
  const std::uint8_t* from = base + at * codec::cuda::kElementBytes<kType>;
  return codec::cuda::load_quad<kType>(from, count,
                                       codec::cuda::is_aligned(from, 4 * codec::cuda::kElementBytes<kType>));
}

__device__ __forceinline__ void store_floats(float* base, std::uint64_t at, const Quad& quad,
                                             unsigned count) {
  auto* to = reinterpret_cast<std::uint8_t*>(base + at);
  codec::cuda::store_quad<DType::Float32>(to, quad, count, codec::cuda::is_aligned(to, 16));
}

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    accumulate(const std::uint8_t* elements, float* sums, std::uint64_t count, bool adds) {
  for_quads(count, [&](std::uint64_t at, unsigned here) {
    Quad quad = load<kType>(elements, at, here);
    if (adds) {
      const Quad old = load<DType::Float32>(reinterpret_cast<const std::uint8_t*>(sums), at, here);
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) quad.v[c] = add_as_host(old.v[c], quad.v[c]);
    }
    store_floats(sums, at, quad, here);
  });
}

__global__ void __launch_bounds__(kThreads) divide_all(float* sums, std::uint64_t count, float divisor) {
  for_quads(count, [&](std::uint64_t at, unsigned here) {
    Quad quad = load<DType::Float32>(reinterpret_cast<const std::uint8_t*>(sums), at, here);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      const float value = quad.v[c];
      quad.v[c] = codec::cuda::is_nan(value) ? __uint_as_float(__float_as_uint(value) | 0x400000u)
                                             : __fdiv_rn(value, divisor);
    }
    store_floats(sums, at, quad, here);
  });
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) store(const float* sums, std::uint8_t* dst, std::uint64_t count) {
  for_quads(count, [&](std::uint64_t at, unsigned here) {
    const Quad quad = load<DType::Float32>(reinterpret_cast<const std::uint8_t*>(sums), at, here);
    auto* to = reinterpret_cast<std::uint16_t*>(dst) + at;
    for (unsigned c = 0; c < here; ++c) to[c] = codec::cuda::narrow<kType>(quad.v[c]);
  });
}

__global__ void __launch_bounds__(kThreads) copy(const float* sums, float* dst, std::uint64_t count) {
  for_quads(count, [&](std::uint64_t at, unsigned here) {
    store_floats(dst, at, load<DType::Float32>(reinterpret_cast<const std::uint8_t*>(sums), at, here), here);
  });
}

Grid grid_for(std::uint64_t count) {
  const std::uint64_t tiles = (count + 4 * kThreads - 1) / (4 * kThreads);
  return {codec::cuda::persistent_blocks(tiles, kBlocksPerMultiprocessor), kThreads, 0};
}

}  // namespace

core::Status accumulate_elements(DType dtype, const std::byte* elements_dev, float* sums_dev,
                                 std::uint64_t count, codec::Accumulate mode, Stream stream) {
  const auto* elements = reinterpret_cast<const std::uint8_t*>(elements_dev);
  const bool adds = mode == codec::Accumulate::Add;
  switch (dtype) {
    case DType::Float16:
      return launch(accumulate<DType::Float16>, grid_for(count), stream, elements, sums_dev, count, adds);
    case DType::BFloat16:
      return launch(accumulate<DType::BFloat16>, grid_for(count), stream, elements, sums_dev, count, adds);
    default:
      return launch(accumulate<DType::Float32>, grid_for(count), stream, elements, sums_dev, count, adds);
  }
}

core::Status divide(float* sums_dev, std::uint64_t count, int divisor, Stream stream) {
  if (divisor == 1) return core::Status::ok();
  return launch(divide_all, grid_for(count), stream, sums_dev, count, static_cast<float>(divisor));
}

core::Status store_sums(DType dtype, const float* sums_dev, std::byte* dst_dev, std::uint64_t count,
                        Stream stream) {
  auto* dst = reinterpret_cast<std::uint8_t*>(dst_dev);
  switch (dtype) {
    case DType::Float16:
      return launch(store<DType::Float16>, grid_for(count), stream, sums_dev, dst, count);
    case DType::BFloat16:
      return launch(store<DType::BFloat16>, grid_for(count), stream, sums_dev, dst, count);
    default:
      if (reinterpret_cast<const std::byte*>(sums_dev) == dst_dev) return core::Status::ok();
      return launch(copy, grid_for(count), stream, sums_dev, reinterpret_cast<float*>(dst), count);
  }
}

}  // namespace geocomm::collective::cuda
