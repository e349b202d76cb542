// Lists of pieces of device memory that kernels go through, four elements to a thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "codec/cuda/device.h"

namespace geocomm::collective::cuda {

inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kBlocksPerMultiprocessor = 8;
inline constexpr std::uint64_t kTile = std::uint64_t{16} * 4 * kThreads;  // that a block takes at a time

// One piece goes with the launch.
template <typename Piece>
struct Pieces {
  const Piece* list;
  Piece single;
  std::uint64_t count;
  std::uint64_t tiles;  // of the largest

  GEOCOMM_HOST_DEVICE std::uint64_t jobs() const { return count * tiles; }
};

template <typename Piece>
Pieces<Piece> pieces_of(std::span<const Piece> list) {
  std::uint64_t largest = 0;
  for (const Piece& piece : list) largest = std::max(largest, piece.count);
  return {list.data(), list.empty() ? Piece{} : list.front(), list.size(), (largest + kTile - 1) / kTile};
}

template <typename Piece>
codec::cuda::Grid grid_of(const Pieces<Piece>& pieces) {
  return {codec::cuda::persistent_blocks(pieces.jobs(), kBlocksPerMultiprocessor), kThreads};
}

// body(piece, at, count): a block takes a tile of one piece at a time, then ends it with done(job). Of the
// jobs from `first` on this block takes every `stride`-th.
template <typename Piece, typename Body, typename Done>
__device__ __forceinline__ void for_tiles(const Pieces<Piece>& pieces, std::uint64_t first,
                                          std::uint64_t stride, Body&& body, Done&& done) {
  __shared__ Piece shared;
  for (std::uint64_t job = first; job < pieces.jobs(); job += stride) {
    __syncthreads();
    if (threadIdx.x == 0) shared = pieces.count == 1 ? pieces.single : pieces.list[job / pieces.tiles];
    __syncthreads();
    const Piece piece = shared;
    const std::uint64_t begin = job % pieces.tiles * kTile;
    const std::uint64_t end = begin + kTile < piece.count ? begin + kTile : piece.count;
    for (std::uint64_t at = begin + 4 * threadIdx.x; at < end; at += 4 * kThreads) {
      body(piece, at, end - at < 4 ? static_cast<unsigned>(end - at) : 4u);
    }
    done(job);
  }
}

template <typename Piece, typename Body>
__device__ __forceinline__ void for_quads(const Pieces<Piece>& pieces, Body&& body) {
  for_tiles(pieces, blockIdx.x, gridDim.x, body, [](std::uint64_t) {});
}

template <core::DType kType>
__device__ __forceinline__ codec::cuda::Quad load(const void* base, std::uint64_t at, unsigned count) {
  const auto* from = static_cast<const std::uint8_t*>(base) + at * codec::cuda::kElementBytes<kType>;
  return codec::cuda::load_quad<kType>(from, count,
                                       codec::cuda::is_aligned(from, 4 * codec::cuda::kElementBytes<kType>));
}

// To a 16-bit dtype what rounded() gave.
template <core::DType kType>
__device__ __forceinline__ void store(void* base, std::uint64_t at, const codec::cuda::Quad& quad,
                                      unsigned count) {
  codec::cuda::store_as_rounded<kType>(
      static_cast<std::uint8_t*>(base) + at * codec::cuda::kElementBytes<kType>, quad, count);
}

}  // namespace geocomm::collective::cuda
