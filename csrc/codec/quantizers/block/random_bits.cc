#include "codec/quantizers/block/random_bits.h"

#include "core/cpu.h"

namespace geocomm::codec {

const std::byte* RandomBits::bits(std::uint64_t seed, std::uint64_t first, std::size_t count) {
  const std::uint64_t counter = first / kElementsPerCounter;
  const std::size_t skipped = first % kElementsPerCounter;
  const std::size_t needed = (skipped + count + kElementsPerCounter - 1) / kElementsPerCounter;
  // Differences modulo 2^64: indices may wrap.
  if (seed != seed_ || counter - first_counter_ > made_ || made_ - (counter - first_counter_) < needed) {
    core::at_cpu_level<BlockKernels>().random(seed, counter, kCounters, words_);
    seed_ = seed;
    first_counter_ = counter;
    made_ = kCounters;
  }
  return words_ + (counter - first_counter_) * kBytesPerCounter + skipped * sizeof(std::uint16_t);
}

}  // namespace geocomm::codec
