#include <algorithm>

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
constexpr std::uint64_t kTile = std::uint64_t{16} * 4 * kThreads;  // elements that a block takes at a time

// a + b. A NaN is a's, else b's, made quiet, else what an x86 gives for an invalid operation.
__device__ __forceinline__ float add_as_host(float a, float b) {
  return codec::cuda::add_residual(a, 1.0f, b);
}

// One piece goes with the launch.
struct Pieces {
  const SumPiece* list;
  SumPiece single;
  std::uint64_t count;
  std::uint64_t tiles;  // of the largest
};

// body(piece, at, count): each thread takes four elements at a time, a block a tile of one piece.
template <typename Body>
__device__ __forceinline__ void for_quads(const Pieces& pieces, Body&& body) {
  __shared__ SumPiece shared;
  for (std::uint64_t job = blockIdx.x; job < pieces.count * pieces.tiles; job += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) shared = pieces.count == 1 ? pieces.single : pieces.list[job / pieces.tiles];
    __syncthreads();
    const SumPiece piece = shared;
    const std::uint64_t begin = job % pieces.tiles * kTile;
    const std::uint64_t end = begin + kTile < piece.count ? begin + kTile : piece.count;
    for (std::uint64_t at = begin + 4 * threadIdx.x; at < end; at += 4 * kThreads) {
      body(piece, at, end - at < 4 ? static_cast<unsigned>(end - at) : 4u);
    }
  }
}

template <DType kType>
__device__ __forceinline__ Quad load(const void* base, std::uint64_t at, unsigned count) {
  const auto* from = static_cast<const std::uint8_t*>(base) + at * codec::cuda::kElementBytes<kType>;
  return codec::cuda::load_quad<kType>(from, count,
                                       codec::cuda::is_aligned(from, 4 * codec::cuda::kElementBytes<kType>));
}

__device__ __forceinline__ void store_floats(void* base, std::uint64_t at, const Quad& quad, unsigned count) {
  auto* to = static_cast<std::uint8_t*>(base) + 4 * at;
  codec::cuda::store_quad<DType::Float32>(to, quad, count, codec::cuda::is_aligned(to, 16));
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) accumulate(Pieces pieces, bool adds) {
  for_quads(pieces, [&](const SumPiece& piece, std::uint64_t at, unsigned here) {
    Quad quad = load<kType>(piece.elements, at, here);
    if (adds) {
      const Quad old = load<DType::Float32>(piece.sums, at, here);
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) quad.v[c] = add_as_host(old.v[c], quad.v[c]);
    }
    store_floats(piece.sums, at, quad, here);
  });
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) finish(Pieces pieces, float divisor) {
  for_quads(pieces, [&](const SumPiece& piece, std::uint64_t at, unsigned here) {
    Quad quad = load<DType::Float32>(piece.sums, at, here);
    if (divisor != 1.0f) {
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        const float value = quad.v[c];
        quad.v[c] = codec::cuda::is_nan(value) ? __uint_as_float(__float_as_uint(value) | 0x400000u)
                                               : __fdiv_rn(value, divisor);
      }
    }
    if (piece.elements == nullptr) {
      store_floats(piece.sums, at, quad, here);
    } else if constexpr (kType == DType::Float32) {
      store_floats(piece.elements, at, quad, here);
    } else {
      auto* to = reinterpret_cast<std::uint16_t*>(piece.elements) + at;
      for (unsigned c = 0; c < here; ++c) to[c] = codec::cuda::narrow<kType>(quad.v[c]);
    }
  });
}

__global__ void publish(const std::uint64_t* words_dev, std::uint64_t* words, std::uint32_t count) {
  for (std::uint32_t i = threadIdx.x; i < count; i += blockDim.x) words[i] = words_dev[i];
}

Pieces pieces_of(std::span<const SumPiece> list) {
  std::uint64_t largest = 0;
  for (const SumPiece& piece : list) largest = std::max(largest, piece.count);
  return {list.data(), list.empty() ? SumPiece{} : list.front(), list.size(), (largest + kTile - 1) / kTile};
}

Grid grid_of(const Pieces& pieces) {
  return {codec::cuda::persistent_blocks(pieces.count * pieces.tiles, kBlocksPerMultiprocessor), kThreads, 0};
}

}  // namespace

core::Status accumulate_elements(DType dtype, std::span<const SumPiece> list, codec::Accumulate mode,
                                 Stream stream) {
  const Pieces pieces = pieces_of(list);
  const bool adds = mode == codec::Accumulate::Add;
  return codec::with_compressible(
      dtype, [&]<DType kType>() { return launch(accumulate<kType>, grid_of(pieces), stream, pieces, adds); });
}

core::Status finish_sums(DType dtype, std::span<const SumPiece> list, int divisor, Stream stream) {
  const Pieces pieces = pieces_of(list);
  return codec::with_compressible(dtype, [&]<DType kType>() {
    return launch(finish<kType>, grid_of(pieces), stream, pieces, static_cast<float>(divisor));
  });
}

core::Status publish_words(const std::uint64_t* words_dev, std::uint64_t* words, std::uint32_t count,
                           Stream stream) {
  return launch(publish, Grid{1, 32}, stream, words_dev, words, count);
}

}  // namespace geocomm::collective::cuda
