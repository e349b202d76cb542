// Elements on their way out of received bytes, which may lie at any address, and into what the caller asked
// for.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"
#include "codec/frames/elements.h"

namespace geocomm::codec::cuda {

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

}  // namespace geocomm::codec::cuda
