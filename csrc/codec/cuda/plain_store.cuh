// Elements into frames as they are, plus the residual where there is one, at any address: raw blocks, frames
// of None between others. Both are rare: bytes will do.
#pragma once

#include <cstdint>

#include "codec/cuda/block_place.cuh"
#include "codec/cuda/device.h"

namespace geocomm::codec::cuda {

template <core::DType kType>
__device__ __forceinline__ void store_bytes(std::uint8_t* to, std::uint32_t bits) {
#pragma unroll
  for (unsigned i = 0; i < kElementBytes<kType>; ++i) to[i] = static_cast<std::uint8_t>(bits >> 8 * i);
}

template <core::DType kType>
__device__ __forceinline__ std::uint32_t element_bits(const std::uint8_t* src, std::uint64_t element) {
  if constexpr (kType == core::DType::Float32) return reinterpret_cast<const std::uint32_t*>(src)[element];
  return reinterpret_cast<const std::uint16_t*>(src)[element];
}

// `count` elements, at most four; updates the residual.
template <core::DType kType, bool kFeedback>
__device__ void write_plain(const std::uint8_t* src, const ResidualView& residual, std::uint64_t element,
                            unsigned count, std::uint8_t* to) {
  if constexpr (kFeedback) {
    const Quad values = load_values<kType, true>(src, residual, element, count);
    Quad carried = values;
    for (unsigned c = 0; c < count; ++c) {
      if constexpr (kType == core::DType::Float32) {
        store_bytes<kType>(to + 4 * c, __float_as_uint(values.v[c]));
      } else {
        const std::uint16_t bits = narrow_saturated<kType>(values.v[c]);
        store_bytes<kType>(to + 2 * c, bits);
        carried.v[c] = widen<kType>(bits);
      }
    }
    store_residual(residual, element, values, carried, count);
  } else {
    for (unsigned c = 0; c < count; ++c) {
      store_bytes<kType>(to + c * kElementBytes<kType>, element_bits<kType>(src, element + c));
    }
  }
}

// A block, or what its lanes have of it.
template <core::DType kType, bool kFeedback>
__device__ void write_raw_block(const ElementEncode& args, const BlockPlace& place, std::uint8_t* to) {
  const std::uint8_t* src = args.elements(place.frame);
  const ResidualView residual = args.residual_of(place.frame);
  for (unsigned row = 0; row < place.rows; ++row) {
    const unsigned offset = place.offset(row);
    write_plain<kType, kFeedback>(src, residual, place.begin + offset, place.count(row),
                                  to + std::uint64_t{offset} * kElementBytes<kType>);
  }
}

}  // namespace geocomm::codec::cuda
