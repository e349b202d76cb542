// Random bits for stochastic rounding, a pure function of the seed and the element's index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec_spec.h"

namespace geocomm::codec {

// 16 bits for each element of a block. Element e takes the 16-bit word e % 8 (in order of memory,
// little-endian) of Philox4x32-10 with counter {e / 8 mod 2^32, e / 2^35, 0, 0} and key {seed mod 2^32, seed
// / 2^32}.
class BlockRandom {
 public:
  // Bits of the elements [first, first + count), count <= kMaxBlock; valid until the next call.
  const std::uint16_t* fill(std::uint64_t seed, std::uint64_t first, std::size_t count);

 private:
  static constexpr std::size_t kBatch = 16;  // counters made at once, 8 elements each
  alignas(64) std::uint32_t words_[(kMaxBlock / 8 + 1 + kBatch) * 4];
};

}  // namespace geocomm::codec
