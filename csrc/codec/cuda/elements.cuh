// Elements, four at a time: out of received bytes, in tiles, and whether a cast carries them.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"
#include "codec/frames/elements.h"

namespace geocomm::codec::cuda {

// Elements on their way out of received bytes, which may lie at any address, and into what the caller asked
// for.

__device__ __forceinline__ std::uint32_t load_u16(const std::uint8_t* from) {
  return from[0] | static_cast<std::uint32_t>(from[1]) << 8;
}
__device__ __forceinline__ std::uint32_t load_u32(const std::uint8_t* from) {
  return load_u16(from) | load_u16(from + 2) << 16;
}

template <core::DType kType>
__device__ __forceinline__ Quad load_received(const std::uint8_t* from, unsigned count) {
  if (count == 4 && is_aligned(from, 4 * kElementBytes<kType>)) return load_quad<kType>(from, 4, true);
  Quad quad;
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) {
    quad.v[c] = 0.0f;
    if (c >= count) continue;
    if constexpr (kType == core::DType::Float32) {
      quad.v[c] = __uint_as_float(load_u32(from + 4 * c));
    } else {
      quad.v[c] = widen<kType>(static_cast<std::uint16_t>(load_u16(from + 2 * c)));
    }
  }
  return quad;
}

template <Sink kSink>
inline constexpr core::DType kTypeOf = kSink == Sink::Float16    ? core::DType::Float16
                                       : kSink == Sink::BFloat16 ? core::DType::BFloat16
                                                                 : core::DType::Float32;

// Stores, or adds, four decoded values; `element` counts from the beginning of `dst`.
template <Sink kSink>
__device__ __forceinline__ void put_quad(std::uint8_t* dst, std::uint64_t element, const Quad& values,
                                         unsigned count) {
  constexpr core::DType kType = kTypeOf<kSink>;
  std::uint8_t* to = dst + element * kElementBytes<kType>;
  const bool vector = is_aligned(to, 4 * kElementBytes<kType>);
  if constexpr (kSink == Sink::AddToFloat32) {
    Quad sum = load_quad<kType>(to, count, vector);
#pragma unroll
    for (int c = 0; c < 4; ++c) sum.v[c] = __fadd_rn(sum.v[c], values.v[c]);
    store_quad<kType>(to, sum, count, vector);
  } else {
    store_quad<kType>(to, values, count, vector);
  }
}

// Stores, or adds, one.
template <Sink kSink>
__device__ __forceinline__ void put_value(std::uint8_t* dst, std::uint64_t element, float value) {
  if constexpr (kTypeOf<kSink> != core::DType::Float32) {
    reinterpret_cast<std::uint16_t*>(dst)[element] = narrow_saturated<kTypeOf<kSink>>(value);
  } else {
    float& to = reinterpret_cast<float*>(dst)[element];
    to = kSink == Sink::AddToFloat32 ? __fadd_rn(to, value) : value;
  }
}

// Four plain elements from received bytes to the sink. To their own dtype they go bit for bit.
template <Sink kSink>
__device__ __forceinline__ void put_plain(core::DType dtype, const std::uint8_t* from, std::uint8_t* dst,
                                          std::uint64_t element, unsigned count) {
  if (dtype == core::DType::Float32) {
    put_quad<kSink>(dst, element, load_received<core::DType::Float32>(from, count), count);
  } else if constexpr (kSink == Sink::Float16 || kSink == Sink::BFloat16) {
    auto* to = reinterpret_cast<std::uint16_t*>(dst) + element;
    for (unsigned c = 0; c < count; ++c) to[c] = static_cast<std::uint16_t>(load_u16(from + 2 * c));
  } else if (dtype == core::DType::Float16) {
    put_quad<kSink>(dst, element, load_received<core::DType::Float16>(from, count), count);
  } else {
    put_quad<kSink>(dst, element, load_received<core::DType::BFloat16>(from, count), count);
  }
}

// Elements of one frame that a block of threads takes: in each of a few rounds four to a thread.

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

// Whether values are in the range of a cast.

// Magnitudes from here up to Inf are finite and would become Inf.
template <core::DType kFormat>
inline constexpr std::uint32_t kFirstTooLarge = kFormat == core::DType::Float16 ? 0x477FF000u : 0x7F7F8000u;

template <core::DType kFormat>
__device__ __forceinline__ bool all_fit(const Quad& values) {
  bool fit = true;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const std::uint32_t magnitude = __float_as_uint(values.v[c]) & kMagnitude;
    fit = fit && (magnitude < kFirstTooLarge<kFormat> || magnitude >= kInfBits);
  }
  return fit;
}

}  // namespace geocomm::codec::cuda
