// One bit per element, the least significant bit of each byte first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace geocomm::codec {

constexpr std::size_t bitmap_bytes(std::size_t elements) {
  return (elements + 7) / 8;
}

inline std::size_t count_bits(std::uint64_t word) {
  constexpr std::uint64_t kPairs = 0x5555555555555555;
  constexpr std::uint64_t kNibbles = 0x3333333333333333;
  constexpr std::uint64_t kBytes = 0x0F0F0F0F0F0F0F0F;
  word -= word >> 1 & kPairs;
  word = (word & kNibbles) + (word >> 2 & kNibbles);
  return static_cast<std::size_t>(((word + (word >> 4)) & kBytes) * 0x0101010101010101 >> 56);
}

inline std::size_t count_bits(std::span<const std::byte> bitmap) {
  std::size_t bits = 0;
  std::uint64_t word;
  for (; bitmap.size() >= sizeof(word); bitmap = bitmap.subspan(sizeof(word))) {
    std::memcpy(&word, bitmap.data(), sizeof(word));
    bits += count_bits(word);
  }
  word = 0;
  if (!bitmap.empty()) std::memcpy(&word, bitmap.data(), bitmap.size());
  return bits + count_bits(word);
}

// Whether the last byte of a received bitmap has bits of elements that are not there.
inline bool has_bits_beyond(std::span<const std::byte> bitmap, std::size_t elements) {
  return elements % 8 != 0 && static_cast<unsigned>(bitmap.back()) >> elements % 8 != 0;
}

}  // namespace geocomm::codec
