// The loops of LosslessKernels on vectors V (codec/simd). All is local to the file that
// includes it.
#pragma once

#include <cstddef>

#include "codec/frames/vector_elements.h"
#include "codec/quantizers/lossless/lossless_kernels.h"
#include "codec/simd/bits.h"
#include "codec/simd/vector_words.h"

namespace geocomm::codec {
namespace {

template <typename V>
Words<V> upper_halves(const std::byte* from) {
  return {V::upper_halves(V::load_ints(from), V::load_ints(from + V::kBytes)),
          V::upper_halves(V::load_ints(from + 2 * V::kBytes), V::load_ints(from + 3 * V::kBytes))};
}
template <typename V>
Words<V> lower_halves(const std::byte* from) {
  return {V::lower_halves(V::load_ints(from), V::load_ints(from + V::kBytes)),
          V::lower_halves(V::load_ints(from + 2 * V::kBytes), V::load_ints(from + 3 * V::kBytes))};
}

template <typename V>
std::size_t split32(const std::byte* src, std::size_t count, std::byte* high, std::byte* low,
                    std::byte* bitmap) {
  std::size_t set = 0;
  for (std::size_t i = 0; i < count; i += V::kBytes) {
    const auto upper = upper_halves<V>(src + 4 * i);
    store_bytes<V>({rotate_left<V>(upper.first), rotate_left<V>(upper.last)}, high + i, low + i);
    const auto lower = lower_halves<V>(src + 4 * i);
    const auto bits = V::nonzero_words(lower.first, lower.last);
    store_mask<V>(bitmap, i, bits);
    set += count_ones(bits);
  }
  return set;
}

template <typename V>
std::size_t split_lower(const std::byte* src, const std::byte* bitmap, std::size_t count, std::byte* high,
                        std::byte* low) {
  const std::byte* const begin = high;
  for (std::size_t i = 0; i < count; i += V::kBytes) {
    const auto lower = lower_halves<V>(src + 4 * i);
    if (bitmap == nullptr) {
      store_bytes<V>(lower, high, low);
      high += V::kBytes;
      low += V::kBytes;
    } else if (const auto bits = load_mask<V>(bitmap, i); bits != 0) {
      V::compact(bits, V::high_bytes(lower.first, lower.last), high);
      V::compact(bits, V::low_bytes(lower.first, lower.last), low);
    }
  }
  return static_cast<std::size_t>(high - begin);
}

template <typename V>
std::size_t merge32(const std::byte* high, const std::byte* low, const LowerHalves& lower, std::size_t count,
                    std::byte* dst) {
  const auto zero = V::set_int(0);
  const std::byte* next_high = lower.high;
  const std::byte* next_low = lower.low;
  for (std::size_t i = 0; i < count; i += V::kBytes) {
    Words<V> halves{zero, zero};
    if (lower.bitmap != nullptr) {
      if (const auto bits = load_mask<V>(lower.bitmap, i); bits != 0) {
        const auto high_bytes = V::expand_bytes(bits, next_high);
        halves = words_of<V>(high_bytes, V::expand_bytes(bits, next_low));
      }
    } else if (lower.high != nullptr) {
      halves = words_of<V>(V::load_ints(next_high), V::load_ints(next_low));
      next_high += V::kBytes;
      next_low += V::kBytes;
    }
    const auto upper = words_of<V>(V::load_ints(high + i), V::load_ints(low + i));
    V::store_joined(dst + 4 * i, rotate_right<V>(upper.first), halves.first);
    V::store_joined(dst + 4 * i + 2 * V::kBytes, rotate_right<V>(upper.last), halves.last);
  }
  return static_cast<std::size_t>(next_high - lower.high);
}

template <typename V>
constexpr LosslessKernels kLosslessLoops{split32<V>, split_lower<V>, merge32<V>};

}  // namespace
}  // namespace geocomm::codec
