// Words of 16 bits, rotated left by one bit, to a plane of their high and one of their low bytes, and back,
// on vectors V (vector_*.h). All is local to the file that includes it.
#pragma once

#include <cstddef>

namespace geocomm::codec {
namespace {

template <typename V>
typename V::Ints rotate_left(typename V::Ints words) {
  return V::template shift_words_left<1>(words) | V::template shift_words_right<15>(words);
}
template <typename V>
typename V::Ints rotate_right(typename V::Ints words) {
  return V::template shift_words_right<1>(words) | V::template shift_words_left<15>(words);
}

// V::kBytes words.
template <typename V>
struct Words {
  typename V::Ints first;
  typename V::Ints last;
};

template <typename V>
void store_bytes(const Words<V>& words, std::byte* high, std::byte* low) {
  V::store_ints(high, V::high_bytes(words.first, words.last));
  V::store_ints(low, V::low_bytes(words.first, words.last));
}
template <typename V>
Words<V> words_of(typename V::Ints high, typename V::Ints low) {
  Words<V> words;
  V::join_bytes(low, high, words.first, words.last);
  return words;
}

// `count` is a multiple of 64.
template <typename V>
void split_words(const std::byte* words, std::size_t count, std::byte* high, std::byte* low) {
  for (std::size_t i = 0; i < count; i += V::kBytes) {
    const std::byte* from = words + 2 * i;
    store_bytes<V>({rotate_left<V>(V::load_ints(from)), rotate_left<V>(V::load_ints(from + V::kBytes))},
                   high + i, low + i);
  }
}

template <typename V>
void join_words(const std::byte* high, const std::byte* low, std::size_t count, std::byte* words) {
  for (std::size_t i = 0; i < count; i += V::kBytes) {
    const auto rotated = words_of<V>(V::load_ints(high + i), V::load_ints(low + i));
    V::store_ints(words + 2 * i, rotate_right<V>(rotated.first));
    V::store_ints(words + 2 * i + V::kBytes, rotate_right<V>(rotated.last));
  }
}

}  // namespace
}  // namespace geocomm::codec
