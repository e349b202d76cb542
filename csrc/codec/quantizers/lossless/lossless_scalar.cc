#include <bit>
#include <cstdint>
#include <cstring>

#include "codec/frames/bitmap.h"
#include "codec/frames/elements.h"
#include "codec/quantizers/lossless/lossless_kernels.h"

namespace geocomm::codec {
namespace {

std::byte high_byte(std::uint32_t word) {
  return static_cast<std::byte>(word >> 8 & 0xFF);
}
std::byte low_byte(std::uint32_t word) {
  return static_cast<std::byte>(word & 0xFF);
}
std::uint16_t word_of(std::byte high, std::byte low) {
  return static_cast<std::uint16_t>(static_cast<unsigned>(high) << 8 | static_cast<unsigned>(low));
}

std::size_t split32(const std::byte* __restrict src, std::size_t count, std::byte* __restrict high,
                    std::byte* __restrict low, std::byte* __restrict bitmap) {
  std::size_t set = 0;
  for (std::size_t first = 0; first < count; first += kLosslessUnit) {
    const std::byte* unit = src + 4 * first;
    for (std::size_t i = 0; i < kLosslessUnit; ++i) {
      const std::uint16_t rotated = std::rotl(load_unaligned<std::uint16_t>(unit + 4 * i + 2), 1);
      high[first + i] = high_byte(rotated);
      low[first + i] = low_byte(rotated);
    }
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < kLosslessUnit; ++i) {
      const bool is_set = load_unaligned<std::uint16_t>(unit + 4 * i) != 0;
      bits |= std::uint64_t{is_set} << i;
    }
    std::memcpy(bitmap + first / 8, &bits, sizeof(bits));
    set += count_bits(bits);
  }
  return set;
}

std::size_t split_lower(const std::byte* __restrict src, const std::byte* __restrict bitmap,
                        std::size_t count, std::byte* __restrict high, std::byte* __restrict low) {
  std::size_t taken = 0;
  for (std::size_t first = 0; first < count; first += 8) {
    const unsigned bits = bitmap == nullptr ? 0xFF : static_cast<unsigned>(bitmap[first / 8]);
    if (bits == 0) continue;
    for (std::size_t i = 0; i < 8; ++i) {
      const auto word = load_unaligned<std::uint32_t>(src + 4 * (first + i));
      high[taken] = high_byte(word);
      low[taken] = low_byte(word);
      taken += bits >> i & 1u;
    }
  }
  return taken;
}

std::size_t merge32(const std::byte* __restrict high, const std::byte* __restrict low,
                    const LowerHalves& lower, std::size_t count, std::byte* __restrict dst) {
  std::size_t taken = 0;
  for (std::size_t first = 0; first < count; first += 8) {
    unsigned bits = lower.high == nullptr ? 0 : 0xFF;
    if (lower.bitmap != nullptr) bits = static_cast<unsigned>(lower.bitmap[first / 8]);
    for (std::size_t i = 0; i < 8; ++i) {
      std::uint32_t word = std::uint32_t{std::rotr(word_of(high[first + i], low[first + i]), 1)} << 16;
      if ((bits >> i & 1u) != 0) {
        word |= word_of(lower.high[taken], lower.low[taken]);
        ++taken;
      }
      std::memcpy(dst + 4 * (first + i), &word, sizeof(word));
    }
  }
  return taken;
}

constexpr LosslessKernels kLoops{split32, split_lower, merge32};

}  // namespace

constinit const LosslessKernels LosslessKernels::kScalar = kLoops;

}  // namespace geocomm::codec
