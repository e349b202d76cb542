// Random bits for stochastic rounding, a pure function of the seed and the element's index.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/quantizers/block/block_kernels.h"
#include "codec/spec/codec_spec.h"

namespace geocomm::codec {

// 16 bits for each element, at any alignment. Element e takes the 16-bit word e % 8 (in order of memory,
// little-endian) of Philox4x32-10 with counter {e / 8 mod 2^32, e / 2^35, 0, 0} and key {seed mod 2^32, seed
// / 2^32}.
class RandomBits {
 public:
  // Bits of the elements [first, first + count), count <= kMaxBlock; valid until the next call. Those of one
  // seed are made many at a time.
  const std::byte* bits(std::uint64_t seed, std::uint64_t first, std::size_t count);

 private:
  static constexpr std::size_t kBytesPerCounter = 16;
  static constexpr std::size_t kElementsPerCounter = 8;
  static constexpr std::size_t kCounters = kMaxBlock / kElementsPerCounter + kRandomCounters;

  std::uint64_t seed_ = 0;
  std::uint64_t first_counter_ = 0;
  std::size_t made_ = 0;  // counters of seed_ from first_counter_ on
  alignas(64) std::byte words_[kCounters * kBytesPerCounter];
};

}  // namespace geocomm::codec
