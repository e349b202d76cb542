// A CUDA device made of fibers, for tests on machines without a GPU: the .cu files, compiled as C++ with this
// header included first, run here thread by thread.
//
// Every CUDA thread of a block is a fiber; blocks run one after the other. A fiber runs until it has to wait
// for others, at a barrier or a warp intrinsic, which complete when all that take part have arrived. What can
// never complete (lanes of the mask that went another way) is reported, and ends the process. Accesses to
// memory are not watched: what a missing barrier breaks shows in the results, since both orders of running
// the fibers are tried (set_order()). Floats behave as on the device where that differs: a NaN that an
// operation makes is 0x7FFFFFFF.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "core/half.h"

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace geocomm::simt {

enum class Order { Forward, Backward };
// In which order the fibers of a block take turns.
void set_order(Order order);

// Runs a kernel to its end. Not thread-safe; not from inside a kernel.
void launch(const std::function<void()>& kernel, dim3 grid, dim3 block, std::size_t shared_bytes);
// Kernels that were launched since the process began; and whether they are only counted: of operations whose
// memory nobody has.
std::size_t launches();
void only_count(bool counts);
// What each kernel is run by from now on; nullptr: nothing.
void set_around(std::function<void(const std::function<void()>& kernel)> around);

struct Coordinates {
  dim3 thread_index, block_index, block_size, grid_size;
};
const Coordinates& here();
// Dynamic shared memory of the running block, aligned to 16. Filled with garbage before each block.
void* dynamic_shared();

void block_barrier();

enum class WarpOp : std::uint8_t { Sync, Shuffle, Ballot, Max, Min, Add, Or };
// Waits for all lanes in `mask`. Shuffle gives the value of lane `source`, Ballot the lanes whose value is
// not 0, the others a reduction of the 32-bit values.
std::uint64_t warp(WarpOp op, std::uint32_t mask, std::uint64_t value, int source = 0);
int lane();

template <typename T>
T shuffle(std::uint32_t mask, T value, int source) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp(WarpOp::Shuffle, mask, bits, source);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename T>
T exchange(T* address, T value) {
  const T old = *address;
  *address = value;
  return old;
}

inline float canonical(float value) {
  return value == value ? value : std::bit_cast<float>(0x7FFFFFFFu);
}

}  // namespace geocomm::simt

#define GEOCOMM_SIMT  // what device code looks for where nvcc is not the compiler
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static
#define __forceinline__ inline
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define threadIdx (::geocomm::simt::here().thread_index)
#define blockIdx (::geocomm::simt::here().block_index)
#define blockDim (::geocomm::simt::here().block_size)
#define gridDim (::geocomm::simt::here().grid_size)

inline void __syncthreads() {
  geocomm::simt::block_barrier();
}
inline void __threadfence() {}
inline void __syncwarp(unsigned mask = ~0u) {
  geocomm::simt::warp(geocomm::simt::WarpOp::Sync, mask, 0);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(geocomm::simt::warp(geocomm::simt::WarpOp::Ballot, mask, predicate != 0));
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int first = geocomm::simt::lane() & ~(width - 1);
  return geocomm::simt::shuffle(mask, value, first + (source & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const int source = geocomm::simt::lane() ^ lanes;
  const bool inside = (source & ~(width - 1)) <= (geocomm::simt::lane() & ~(width - 1));
  return geocomm::simt::shuffle(mask, value, inside ? source : geocomm::simt::lane());
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = geocomm::simt::lane();
  const bool inside = (lane & (width - 1)) >= static_cast<int>(delta);
  return geocomm::simt::shuffle(mask, value, inside ? lane - static_cast<int>(delta) : lane);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = geocomm::simt::lane();
  const bool inside = (lane & (width - 1)) + static_cast<int>(delta) < width;
  return geocomm::simt::shuffle(mask, value, inside ? lane + static_cast<int>(delta) : lane);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(geocomm::simt::warp(geocomm::simt::WarpOp::Max, mask, value));
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(geocomm::simt::warp(geocomm::simt::WarpOp::Min, mask, value));
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(geocomm::simt::warp(geocomm::simt::WarpOp::Add, mask, value));
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(geocomm::simt::warp(geocomm::simt::WarpOp::Or, mask, value));
}

template <typename T>
T atomicAdd(T* address, T value) {
  return geocomm::simt::exchange(address, static_cast<T>(*address + value));
}
template <typename T>
T atomicOr(T* address, T value) {
  return geocomm::simt::exchange(address, *address | value);
}
template <typename T>
T atomicXor(T* address, T value) {
  return geocomm::simt::exchange(address, *address ^ value);
}
template <typename T>
T atomicMax(T* address, T value) {
  return geocomm::simt::exchange(address, *address < value ? value : *address);
}
template <typename T>
T atomicMin(T* address, T value) {
  return geocomm::simt::exchange(address, value < *address ? value : *address);
}

inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline float __fadd_rn(float a, float b) {
  return geocomm::simt::canonical(a + b);
}
inline float __fsub_rn(float a, float b) {
  return geocomm::simt::canonical(a - b);
}
inline float __fmul_rn(float a, float b) {
  return geocomm::simt::canonical(a * b);
}
inline float __fdiv_rn(float a, float b) {
  return geocomm::simt::canonical(a / b);
}
inline float __fsqrt_rn(float value) {
  return geocomm::simt::canonical(__builtin_sqrtf(value));
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline double __dsub_rn(double a, double b) {
  return a - b;
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}
inline double __ddiv_rn(double a, double b) {
  return a / b;
}
inline double __dsqrt_rn(double value) {
  return __builtin_sqrt(value);
}
inline float __double2float_rn(double value) {
  return static_cast<float>(value);
}
inline long long __double_as_longlong(double value) {
  return std::bit_cast<long long>(value);
}
inline double __longlong_as_double(long long bits) {
  return std::bit_cast<double>(bits);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((std::uint64_t{a} * b) >> 32);
}
inline int __popc(unsigned bits) {
  return std::popcount(bits);
}
inline int __ffs(unsigned bits) {
  return bits == 0 ? 0 : std::countr_zero(bits) + 1;
}
inline int __clz(unsigned bits) {
  return std::countl_zero(bits);
}
inline unsigned __brev(unsigned bits) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= ((bits >> i) & 1u) << (31 - i);
  return reversed;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t bytes = (std::uint64_t{high} << 32) | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>((bytes >> (8 * ((selector >> (4 * i)) & 7))) & 0xFF) << (8 * i);
  }
  return result;
}

struct __half {
  unsigned short bits;
};
inline __half __ushort_as_half(unsigned short bits) {
  return {bits};
}
inline unsigned short __half_as_ushort(__half value) {
  return value.bits;
}
inline float __half2float(__half value) {
  return geocomm::simt::canonical(geocomm::core::half_to_float(value.bits));
}
inline __half __float2half_rn(float value) {
  return {value == value ? geocomm::core::float_to_half(value) : static_cast<unsigned short>(0x7FFF)};
}
