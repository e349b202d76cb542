// Whether values are in the range of a cast.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"

namespace geocomm::codec::cuda {

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
