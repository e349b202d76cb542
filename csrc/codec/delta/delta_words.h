// How a word differs from another: what a delta carries of it.
//
// Words are unsigned integers of 8, 16 or 32 bits. Elements of 8 bytes are two words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "codec/frames/elements.h"
#include "core/dtype.h"

namespace geocomm::codec {

inline constexpr std::size_t word_bytes(core::DType dtype) {
  return core::size_of(dtype) < 4 ? core::size_of(dtype) : 4;
}

template <typename Word>
inline constexpr unsigned kWordBitsOf = 8 * sizeof(Word);

// The bits of a floating-point number as an integer that grows as the number does: neighbours differ by one,
// through zero too. Its own inverse. Of integers the bits themselves.
template <typename Word, bool kIsFloat>
constexpr Word ordered(Word bits) {
  if constexpr (!kIsFloat) return bits;
  const bool negative = (bits >> (kWordBitsOf<Word> - 1)) != 0;
  return static_cast<Word>(bits ^ (negative ? static_cast<Word>(static_cast<Word>(~Word{0}) >> 1) : Word{0}));
}

// The difference as 0, -1, 1, -2, 2, … numbered from 0: small where it is small. 0: equal.
template <typename Word, bool kIsFloat>
constexpr Word step_between(Word from, Word to) {
  const auto step = static_cast<Word>(ordered<Word, kIsFloat>(to) - ordered<Word, kIsFloat>(from));
  const bool negative = (step >> (kWordBitsOf<Word> - 1)) != 0;
  const auto doubled = static_cast<Word>(step << 1);
  return static_cast<Word>(negative ? ~doubled : doubled);
}
// `to` again, of any `step`.
template <typename Word, bool kIsFloat>
constexpr Word stepped(Word from, Word step) {
  const auto half = static_cast<Word>(step >> 1);
  const auto difference = static_cast<Word>((step & 1) != 0 ? ~half : half);
  return ordered<Word, kIsFloat>(static_cast<Word>(ordered<Word, kIsFloat>(from) + difference));
}

// Calls run.template operator()<Word, kIsFloat>() for the words of `dtype`.
template <typename Run>
decltype(auto) with_words(core::DType dtype, const Run& run) {
  const bool is_float = core::is_compressible(dtype);
  switch (word_bytes(dtype)) {
    case 1:
      return run.template operator()<std::uint8_t, false>();
    case 2:
      return is_float ? run.template operator()<std::uint16_t, true>()
                      : run.template operator()<std::uint16_t, false>();
    default:
      return is_float ? run.template operator()<std::uint32_t, true>()
                      : run.template operator()<std::uint32_t, false>();
  }
}

}  // namespace geocomm::codec
