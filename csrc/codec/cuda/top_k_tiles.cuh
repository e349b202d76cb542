// A tile of a received index, sixteen bytes to each thread of a block, and the values that go with it.
#pragma once

#include <cstdint>

#include "codec/cuda/block_scan.cuh"
#include "codec/cuda/element_access.cuh"
#include "codec/cuda/top_k_stages.h"

namespace geocomm::codec::cuda {

inline constexpr unsigned kTileThreads = kTopKThreads;
inline constexpr unsigned kBytesPerThread = kIndexTile / kTileThreads;
static_assert(kBytesPerThread == sizeof(uint4));

__device__ __forceinline__ bool is_gaps(const TopKHead& head) {
  return head.index_mode == static_cast<std::uint8_t>(IndexMode::Gaps);
}
__device__ __forceinline__ std::uint32_t tiles_of(const TopKHead& head) {
  return (head.index_bytes + kIndexTile - 1) / kIndexTile;
}

// A thread's part of a tile.
struct IndexBytes {
  std::uint32_t words[4];
  std::uint32_t count;  // how many there are; behind them is 0

  __device__ __forceinline__ std::uint32_t byte(unsigned i) const {
    return words[i / 4] >> 8 * (i % 4) & 0xFF;
  }

  // Places that it names, and elements that its gaps pass over.
  __device__ __forceinline__ IndexTile measure(bool as_gaps) const {
    IndexTile sums{0, 0};
#pragma unroll
    for (unsigned i = 0; i < kBytesPerThread; ++i) {
      if (!as_gaps) {
        sums.places += static_cast<unsigned>(__popc(byte(i)));
      } else if (i < count) {
        const std::uint32_t is_place = byte(i) != kLongGap ? 1 : 0;
        sums.places += is_place;
        sums.span += byte(i) + is_place;
      }
    }
    return sums;
  }
};

// `index` has room for whole tiles' words, aligned to 16.
__device__ __forceinline__ IndexBytes load_index(const std::uint8_t* index, std::uint32_t index_bytes,
                                                 std::uint32_t tile) {
  const std::uint32_t at = tile * kIndexTile + threadIdx.x * kBytesPerThread;
  IndexBytes bytes{};
  if (at >= index_bytes) return bytes;
  bytes.count = index_bytes - at < kBytesPerThread ? index_bytes - at : kBytesPerThread;
  const uint4 words = *reinterpret_cast<const uint4*>(index + at);
  const std::uint32_t loaded[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (unsigned w = 0; w < 4; ++w) {
    const std::uint32_t there = bytes.count <= 4 * w ? 0 : bytes.count - 4 * w;
    bytes.words[w] = there >= 4 ? loaded[w] : loaded[w] & ((1u << 8 * there) - 1);
  }
  return bytes;
}

// A block per tile and frame, so many blocks for a frame that all of them fill the device.
inline std::uint32_t blocks_for_tiles(const TopKDecode& args) {
  const std::uint64_t most = std::uint64_t{args.frames.plan.frames} * args.space.tiles_per_frame;
  const std::uint64_t blocks = persistent_blocks(most, 8);
  return static_cast<std::uint32_t>((blocks + args.frames.plan.frames - 1) / args.frames.plan.frames);
}

}  // namespace geocomm::codec::cuda
