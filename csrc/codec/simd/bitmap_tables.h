// Byte shuffles that close up (compact) or spread (expand) eight bytes by the bits of one, for the fast paths
// that have no such instruction.
#pragma once

#include <cstdint>

namespace geocomm::codec {

struct BitmapTable {
  std::uint8_t order[256][8];
};

namespace bitmap_tables {

inline constexpr std::uint8_t kZero = 0x80;  // a shuffle gives 0 for it

consteval BitmapTable make_compact() {
  BitmapTable table{};
  for (unsigned bits = 0; bits < 256; ++bits) {
    unsigned next = 0;
    for (unsigned bit = 0; bit < 8; ++bit) {
      if ((bits >> bit & 1u) != 0) table.order[bits][next++] = static_cast<std::uint8_t>(bit);
    }
    while (next < 8) table.order[bits][next++] = kZero;
  }
  return table;
}

consteval BitmapTable make_expand() {
  BitmapTable table{};
  for (unsigned bits = 0; bits < 256; ++bits) {
    std::uint8_t next = 0;
    for (unsigned bit = 0; bit < 8; ++bit) table.order[bits][bit] = (bits >> bit & 1u) != 0 ? next++ : kZero;
  }
  return table;
}

}  // namespace bitmap_tables

// Shuffled by kCompact.order[bits], the bytes whose bits are set stand first, in order, and zeros follow.
inline constexpr BitmapTable kCompact = bitmap_tables::make_compact();
// Shuffled by kExpand.order[bits], the first bytes stand, in order, where bits are set, and zeros elsewhere.
inline constexpr BitmapTable kExpand = bitmap_tables::make_expand();

}  // namespace geocomm::codec
