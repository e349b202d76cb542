// The rank-th largest of many keys, by their digits from the highest: of each digit a histogram tells which
// value that key has; those that agree with it so far are counted in the next.
#pragma once

#include <cstdint>

#include "codec/cuda/block_scan.cuh"
#include "codec/cuda/top_k_stages.h"

namespace geocomm::codec::cuda {

// An element as a word: its sign, and its key, which is the bits of the magnitude, plus one, so that 0 is no
// element. NaN are all the same.
inline constexpr std::uint32_t kCanonicalNanBits = 0x7FC00000;
__device__ __forceinline__ std::uint32_t word_of(float value) {
  const std::uint32_t bits = is_nan(value) ? kCanonicalNanBits : __float_as_uint(value);
  return bits + 1;
}
__device__ __forceinline__ std::uint32_t key_of(std::uint32_t word) {
  return word & kMagnitude;
}
__device__ __forceinline__ float value_of(std::uint32_t word) {
  return __uint_as_float(word - 1);
}

inline constexpr unsigned kKeyBits = 31;
inline constexpr unsigned kDigits = 3;
inline constexpr unsigned kBins = 2048;
__device__ __forceinline__ unsigned digit_shift(unsigned digit) {
  return 10 * (kDigits - 1 - digit);
}

// For a block of kTopKThreads threads, all of which call everything.
class DigitSearch {
 public:
  // `rank`: from 1; there are as many keys.
  __device__ void begin(std::uint32_t rank) {
    prefix_ = 0;
    rank_ = rank;
    digit_ = 0;
  }
  // Before a digit's keys are counted.
  __device__ void clear(std::uint32_t* bins) const {
#pragma unroll
    for (unsigned i = 0; i < kBinsPerThread; ++i) bins[i * kTopKThreads + threadIdx.x] = 0;
    __syncthreads();
  }
  __device__ void count(std::uint32_t* bins, std::uint32_t key) const {
    const unsigned shift = digit_shift(digit_);
    const unsigned above = digit_ == 0 ? kKeyBits : digit_shift(digit_ - 1);
    if (key == 0 || key >> above != prefix_ >> above) return;
    atomicAdd(&bins[key >> shift & ((1u << (above - shift)) - 1)], 1u);
  }

  struct Room {
    std::uint32_t bin;
    std::uint32_t rank;
    std::uint32_t members;
  };
  // When all have been counted. True: it was the last digit, or all keys that agree so far are among the
  // largest, whatever their other digits are.
  __device__ bool next(const std::uint32_t* bins, Room& room) {
    __syncthreads();
    // Thread 0 has the highest bins.
    const unsigned first = kBins - kBinsPerThread * (threadIdx.x + 1);
    const auto* pairs = reinterpret_cast<const uint4*>(bins + first);
    const uint4 low = pairs[0];
    const uint4 high = pairs[1];
    const std::uint32_t own[kBinsPerThread] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    std::uint32_t sum = 0;
#pragma unroll
    for (unsigned i = 0; i < kBinsPerThread; ++i) sum += own[i];
    std::uint32_t total;
    std::uint32_t before = sum_before<kTopKThreads>(sum, total);
    if (before < rank_ && rank_ <= before + sum) {
#pragma unroll
      for (int i = kBinsPerThread - 1; i >= 0; --i) {
        if (before < rank_ && rank_ <= before + own[i]) {
          room.bin = first + static_cast<unsigned>(i);
          room.rank = rank_ - before;
          room.members = own[i];
        }
        before += own[i];
      }
    }
    __syncthreads();
    prefix_ |= room.bin << digit_shift(digit_);
    rank_ = room.rank;
    ++digit_;
    return digit_ == kDigits || room.members == rank_;
  }

  // The digits found so far, the others 0; the key's rank among those that begin with them.
  __device__ std::uint32_t prefix() const { return prefix_; }
  __device__ std::uint32_t rank() const { return rank_; }
  __device__ bool takes_all(const Room& room) const { return room.members == rank_; }

 private:
  static constexpr unsigned kBinsPerThread = kBins / kTopKThreads;
  static_assert(kBinsPerThread == 8);

  std::uint32_t prefix_;
  std::uint32_t rank_;
  unsigned digit_;
};

}  // namespace geocomm::codec::cuda
