#include <string>
#include <vector>

#include "codec/entropy/huffman/symbol_counts.h"
#include "plane_cases.h"

namespace geocomm::codec::huffman {
namespace {

Histogram counted_one_by_one(const PlaneBytes& plane) {
  Histogram counts{};
  for (const std::byte symbol : plane) ++counts[std::to_integer<std::size_t>(symbol)];
  return counts;
}

void expect_exact_at_every_level(const PlaneBytes& plane) {
  const Histogram expected = counted_one_by_one(plane);
  at_every_cpu_level([&] { EXPECT_EQ(count_symbols(plane), expected); });
}

// A few symbols are most of the plane up to `until`, in which others are one in `rarity`.
PlaneBytes peaked_plane(std::size_t size, std::size_t until, unsigned rarity) {
  TestRandom random(size + rarity);
  return make_plane(size, [&](std::size_t i) {
    return i < until && random.next() % rarity != 0 ? 31 * (random.next() & 7) : random.next() & 0xFF;
  });
}

TEST(SymbolCounts, test_counts_of_every_kind_of_plane_are_exact) {
  for (const PlaneKind& kind : kPlaneKinds) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{63}, std::size_t{16384}, kBlockBytes}) {
      SCOPED_TRACE(kind.name + std::string(" of ") + std::to_string(size));
      expect_exact_at_every_level(kind.make(size));
    }
  }
}

TEST(SymbolCounts, test_counts_of_peaked_planes_of_any_size_are_exact) {
  for (const unsigned rarity : {9U, 40U, 1000U}) {
    for (std::size_t size = 16384; size < 16384 + 70; ++size) {
      SCOPED_TRACE(size);
      expect_exact_at_every_level(peaked_plane(size, size, rarity));
    }
  }
}

TEST(SymbolCounts, test_counts_are_exact_where_common_symbols_stop_being_most) {
  for (const std::size_t until : {1000U, 1024U, 5000U, 5120U, 60000U}) {
    SCOPED_TRACE(until);
    expect_exact_at_every_level(peaked_plane(kBlockBytes, until, 50));
  }
}

}  // namespace
}  // namespace geocomm::codec::huffman
