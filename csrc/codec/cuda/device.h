// What kernels share: floats as the CPU has them, bit for bit, and loads and stores of four elements.
//
// All float arithmetic is spelled with the __f*_rn intrinsics, which nvcc neither fuses nor flushes, so the
// bytes do not depend on its flags. The device makes its own NaN (0x7FFFFFFF) where an x86 keeps the
// operand's: load_value() mends that.
#pragma once

#include <cstdint>

#include "codec/cuda/kernels.h"
#include "codec/cuda/launch.h"
#include "core/dtype.h"

namespace geocomm::codec::cuda {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kFullMask = 0xFFFFFFFFu;
inline constexpr std::uint32_t kInfBits = 0x7F800000;
inline constexpr std::uint32_t kMagnitude = 0x7FFFFFFF;

template <core::DType kType>
inline constexpr unsigned kElementBytes = core::size_of(kType);

template <typename T>
__device__ __forceinline__ T select(bool condition, T yes, T no) {
  return condition ? yes : no;
}

__device__ __forceinline__ float half_bits_to_float(std::uint16_t bits) {
  const std::uint32_t magnitude = bits & 0x7FFFu;
  const std::uint32_t nan = ((bits & 0x8000u) << 16) | kInfBits | (magnitude << 13);
  const float value = __half2float(__ushort_as_half(bits));
  return select(magnitude > 0x7C00u, __uint_as_float(nan), value);
}

__device__ __forceinline__ std::uint16_t float_to_half_bits(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t nan = ((bits >> 16) & 0x8000u) | 0x7E00u | ((bits >> 13) & 0x3FFu);
  const std::uint32_t half = __half_as_ushort(__float2half_rn(value));
  return static_cast<std::uint16_t>(select((bits & kMagnitude) > kInfBits, nan, half));
}

__device__ __forceinline__ float bfloat16_bits_to_float(std::uint32_t bits) {
  return __uint_as_float(bits << 16);
}

__device__ __forceinline__ std::uint16_t float_to_bfloat16_bits(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>(select((bits & kMagnitude) > kInfBits, (bits >> 16) | 0x40u, rounded));
}

__device__ __forceinline__ bool is_finite(float value) {
  return (__float_as_uint(value) & kMagnitude) < kInfBits;
}

template <core::DType kType>
__device__ __forceinline__ float widen(std::uint16_t bits) {
  if constexpr (kType == core::DType::Float16) return half_bits_to_float(bits);
  return bfloat16_bits_to_float(bits);
}

template <core::DType kType>
__device__ __forceinline__ std::uint16_t narrow(float value) {
  if constexpr (kType == core::DType::Float16) return float_to_half_bits(value);
  return float_to_bfloat16_bits(value);
}

// A finite value beyond the range becomes the largest finite one.
template <core::DType kType>
__device__ __forceinline__ std::uint16_t narrow_saturated(float value) {
  constexpr std::uint32_t kInf = kType == core::DType::Float16 ? 0x7C00u : 0x7F80u;
  const std::uint32_t bits = narrow<kType>(value);
  const bool overflowed = (bits & 0x7FFFu) == kInf && is_finite(value);
  return static_cast<std::uint16_t>(bits - (overflowed ? 1u : 0u));
}

// Four consecutive elements, as a thread takes them.
struct Quad {
  float v[4];
};

// How many of the four from `at` on come before `end`.
__device__ __forceinline__ unsigned four_from(std::uint32_t at, std::uint32_t end) {
  return at >= end ? 0 : end - at < 4 ? end - at : 4;
}

// The largest of these magnitudes and `peak`, as a bit pattern.
__device__ __forceinline__ std::uint32_t peak_with(std::uint32_t peak, const Quad& values) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const std::uint32_t magnitude = __float_as_uint(values.v[c]) & kMagnitude;
    peak = magnitude > peak ? magnitude : peak;
  }
  return peak;
}

// As moment_range() of block_scale.h: powers of two between which values are summed, so that nothing
// overflows.
struct PeakRange {
  float down;
  float up;
};
__device__ __forceinline__ PeakRange peak_range(std::uint32_t peak) {
  const std::uint32_t bits = peak >> 23;
  const std::uint32_t exponent = bits < 1 ? 1 : bits > 253 ? 253 : bits;
  return {__uint_as_float((254 - exponent) << 23), __uint_as_float(exponent << 23)};
}

__device__ __forceinline__ bool is_aligned(const void* address, unsigned bytes) {
  return (reinterpret_cast<std::uintptr_t>(address) & (bytes - 1)) == 0;
}

// `count` of the four are there (the rest becomes 0); `vector`: the address is aligned to all four.
template <core::DType kType>
__device__ __forceinline__ Quad load_quad(const std::uint8_t* from, unsigned count, bool vector) {
  Quad quad;
  if constexpr (kType == core::DType::Float32) {
    if (count == 4 && vector) {
      const float4 loaded = *reinterpret_cast<const float4*>(from);
      return {{loaded.x, loaded.y, loaded.z, loaded.w}};
    }
    const auto* elements = reinterpret_cast<const float*>(from);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) quad.v[c] = c < count ? elements[c] : 0.0f;
  } else {
    if (count == 4 && vector) {
      const uint2 loaded = *reinterpret_cast<const uint2*>(from);
      return {{widen<kType>(static_cast<std::uint16_t>(loaded.x)),
               widen<kType>(static_cast<std::uint16_t>(loaded.x >> 16)),
               widen<kType>(static_cast<std::uint16_t>(loaded.y)),
               widen<kType>(static_cast<std::uint16_t>(loaded.y >> 16))}};
    }
    const auto* elements = reinterpret_cast<const std::uint16_t*>(from);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) quad.v[c] = c < count ? widen<kType>(elements[c]) : 0.0f;
  }
  return quad;
}

__device__ __forceinline__ std::uint32_t pair(std::uint16_t low, std::uint16_t high) {
  return low | (std::uint32_t{high} << 16);
}

// To a 16-bit type it saturates.
template <core::DType kType>
__device__ __forceinline__ void store_quad(std::uint8_t* to, const Quad& quad, unsigned count, bool vector) {
  if constexpr (kType == core::DType::Float32) {
    if (count == 4 && vector) {
      *reinterpret_cast<float4*>(to) = {quad.v[0], quad.v[1], quad.v[2], quad.v[3]};
      return;
    }
    auto* elements = reinterpret_cast<float*>(to);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      if (c < count) elements[c] = quad.v[c];
    }
  } else {
    std::uint16_t bits[4];
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) bits[c] = narrow_saturated<kType>(quad.v[c]);
    if (count == 4 && vector) {
      *reinterpret_cast<uint2*>(to) = {pair(bits[0], bits[1]), pair(bits[2], bits[3])};
      return;
    }
    auto* elements = reinterpret_cast<std::uint16_t*>(to);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      if (c < count) elements[c] = bits[c];
    }
  }
}

__device__ __forceinline__ bool is_nan(float value) {
  return (__float_as_uint(value) & kMagnitude) > kInfBits;
}

// `result` of an operation on a and b. A NaN is a's, else b's, made quiet, else what an x86 gives for an
// invalid operation.
__device__ __forceinline__ float nan_as_host(float result, float a, float b) {
  if (!is_nan(result)) return result;
  if (is_nan(a)) return __uint_as_float(__float_as_uint(a) | 0x400000u);
  if (is_nan(b)) return __uint_as_float(__float_as_uint(b) | 0x400000u);
  return __uint_as_float(0xFFC00000u);
}
__device__ __forceinline__ float divide_as_host(float a, float b) {
  return nan_as_host(__fdiv_rn(a, b), a, b);
}
__device__ __forceinline__ float multiply_as_host(float a, float b) {
  return nan_as_host(__fmul_rn(a, b), a, b);
}

// input + decay * residual.
__device__ __forceinline__ float add_residual(float input, float decay, float residual) {
  return nan_as_host(__fadd_rn(input, __fmul_rn(decay, residual)), input, residual);
}

// The values that a frame carries: input, plus the decayed residual where there is one. `element` counts from
// the payload's beginning.
template <core::DType kType, bool kFeedback>
__device__ __forceinline__ Quad load_values(const std::uint8_t* src, const ResidualView& residual,
                                            std::uint64_t element, unsigned count) {
  const std::uint8_t* from = src + element * kElementBytes<kType>;
  Quad quad = load_quad<kType>(from, count, is_aligned(src, 4 * kElementBytes<kType>) && element % 4 == 0);
  if constexpr (kFeedback) {
    const bool vector = is_aligned(residual.data, 16) && element % 4 == 0;
    const Quad old = residual.is_bfloat16
                         ? load_quad<core::DType::BFloat16>(residual.at(element), count, vector)
                         : load_quad<core::DType::Float32>(residual.at(element), count, vector);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) quad.v[c] = add_residual(quad.v[c], residual.decay, old.v[c]);
  }
  return quad;
}

// What error feedback keeps: 0 where there is no difference to speak of. A BFloat16 residual saturates.
__device__ __forceinline__ void store_residual(const ResidualView& residual, std::uint64_t element,
                                               const Quad& values, const Quad& decoded, unsigned count) {
  Quad kept;
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) {
    kept.v[c] = is_finite(values.v[c]) ? __fsub_rn(values.v[c], decoded.v[c]) : 0.0f;
  }
  const bool vector = is_aligned(residual.data, 16) && element % 4 == 0;
  if (residual.is_bfloat16) {
    store_quad<core::DType::BFloat16>(residual.at(element), kept, count, vector);
  } else {
    store_quad<core::DType::Float32>(residual.at(element), kept, count, vector);
  }
}

// The same of one element.
__device__ __forceinline__ void store_residual(const ResidualView& residual, std::uint64_t element,
                                               float kept) {
  if (residual.is_bfloat16) {
    *reinterpret_cast<std::uint16_t*>(residual.at(element)) = narrow_saturated<core::DType::BFloat16>(kept);
  } else {
    *reinterpret_cast<float*>(residual.at(element)) = kept;
  }
}

// Four as the dtype has them; beyond its range they are Inf.
template <core::DType kType>
__device__ __forceinline__ Quad rounded(Quad quad) {
  if constexpr (kType != core::DType::Float32) {
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) quad.v[c] = widen<kType>(narrow<kType>(quad.v[c]));
  }
  return quad;
}

// What rounded() gave.
template <core::DType kType>
__device__ __forceinline__ void store_as_rounded(std::uint8_t* to, const Quad& quad, unsigned count) {
  if constexpr (kType == core::DType::Float32) {
    store_quad<kType>(to, quad, count, is_aligned(to, 16));
  } else {
    for (unsigned c = 0; c < count; ++c) {
      reinterpret_cast<std::uint16_t*>(to)[c] = narrow<kType>(quad.v[c]);
    }
  }
}

// Adds the squares of the first `count`.
__device__ __forceinline__ double with_squares(double sum, const Quad& quad, unsigned count) {
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) {
    const double wide = quad.v[c];
    if (c < count) sum = __dadd_rn(sum, __dmul_rn(wide, wide));
  }
  return sum;
}

// Calls `run.template operator()<kType, kFeedback>()` for the elements at hand.
template <typename Run>
core::Status with_values(core::DType dtype, const ResidualView& residual, Run&& run) {
  return with_compressible(dtype, [&]<core::DType kType>() {
    return residual.data != nullptr ? run.template operator()<kType, true>()
                                    : run.template operator()<kType, false>();
  });
}

struct RandomWords {
  std::uint32_t w[4];
};

// Philox4x32-10, as core/philox.h.
__device__ __forceinline__ RandomWords philox(std::uint64_t counter, std::uint64_t key) {
  std::uint32_t a = static_cast<std::uint32_t>(counter);
  std::uint32_t b = static_cast<std::uint32_t>(counter >> 32);
  std::uint32_t c = 0;
  std::uint32_t d = 0;
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high_a = __umulhi(0xD2511F53u, a);
    const std::uint32_t high_c = __umulhi(0xCD9E8D57u, c);
    const std::uint32_t low_a = 0xD2511F53u * a;
    const std::uint32_t low_c = 0xCD9E8D57u * c;
    a = high_c ^ b ^ k0;
    b = low_c;
    c = high_a ^ d ^ k1;
    d = low_a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

// Sums, and what is like them, over the threads of a block; all threads of the block call these.

// `combine` of the values of the threads before this one, in order from T{} on; `total`: of all threads.
template <unsigned kThreads, typename T, typename Combine>
__device__ __forceinline__ T combine_before(T value, T& total, Combine combine) {
  __shared__ T of_warps[kThreads / kWarp];
  const unsigned lane = threadIdx.x % kWarp;
  T upto = value;
#pragma unroll
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const T other = __shfl_up_sync(kFullMask, upto, distance);
    if (lane >= distance) upto = combine(other, upto);
  }
  const T lanes_before = __shfl_up_sync(kFullMask, upto, 1);
  __syncthreads();
  if (lane == kWarp - 1) of_warps[threadIdx.x / kWarp] = upto;
  __syncthreads();
  T before{};
  total = T{};
  for (unsigned warp = 0; warp < kThreads / kWarp; ++warp) {
    if (warp < threadIdx.x / kWarp) before = combine(before, of_warps[warp]);
    total = combine(total, of_warps[warp]);
  }
  return lane == 0 ? before : combine(before, lanes_before);
}

// Of all threads, in whatever order, from T{} on.
template <unsigned kThreads, typename T, typename Combine>
__device__ __forceinline__ T combine_all(T value, Combine combine) {
  __shared__ T of_warps[kThreads / kWarp];
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kFullMask, value, distance));
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  T all{};
  for (unsigned warp = 0; warp < kThreads / kWarp; ++warp) all = combine(all, of_warps[warp]);
  return all;
}

template <unsigned kThreads, typename T>
__device__ __forceinline__ T sum_before(T value, T& total) {
  return combine_before<kThreads>(value, total, [](T a, T b) { return static_cast<T>(a + b); });
}

}  // namespace geocomm::codec::cuda
