#include "codec/random_bits.h"

#include "core/philox.h"

namespace geocomm::codec {

const std::uint16_t* BlockRandom::fill(std::uint64_t seed, std::uint64_t first, std::size_t count) {
  const core::PhiloxKey key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  const std::size_t skipped = first % 8;
  const std::size_t counters = (skipped + count + 7) / 8;
  for (std::size_t done = 0; done < counters; done += kBatch) {
    const std::uint64_t base = first / 8 + done;
    const auto low = static_cast<std::uint32_t>(base);
    const auto high = static_cast<std::uint32_t>(base >> 32);
    std::uint32_t* __restrict out = words_ + 4 * done;
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      const std::uint32_t carry = low + i < low ? 1 : 0;
      const core::PhiloxCounter bits = core::philox4x32({low + i, high + carry, 0, 0}, key);
      out[4 * i] = bits[0];
      out[4 * i + 1] = bits[1];
      out[4 * i + 2] = bits[2];
      out[4 * i + 3] = bits[3];
    }
  }
  return reinterpret_cast<const std::uint16_t*>(words_) + skipped;
}

}  // namespace geocomm::codec
