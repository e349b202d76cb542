#include <algorithm>
#include <cstring>

#include "codec/entropy/huffman/plane_format.h"
#include "core/crc32c.h"
#include "plane_cases.h"

namespace geocomm::codec::huffman {
namespace {

constexpr Entropy kStage = Entropy::Huffman;

std::uint32_t head_of(std::span<const std::byte> coded, std::size_t block) {
  std::uint32_t head;
  std::memcpy(&head, coded.data() + block * kHeadBytes, sizeof(head));
  return head;
}
void set_head(std::span<std::byte> coded, std::size_t block, std::uint32_t head) {
  std::memcpy(coded.data() + block * kHeadBytes, &head, sizeof(head));
}
PlaneBytes joined(std::initializer_list<PlaneBytes> parts) {
  PlaneBytes all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}
core::StatusCode decode_code(std::span<const std::byte> coded, std::size_t bytes) {
  PlaneBytes out(bytes);
  return decoded(kStage, coded, out).code();
}

TEST(HuffmanPlane, test_every_level_gives_the_scalar_bytes) {
  for (const PlaneKind& kind : kPlaneKinds) {
    SCOPED_TRACE(kind.name);
    const PlaneBytes all = kind.make(2 * kBlockBytes + 777);
    std::vector<std::size_t> lengths = {kBlockBytes - 1, kBlockBytes, kBlockBytes + 1, all.size()};
    for (std::size_t length = 0; length < 1000; ++length) lengths.push_back(length);
    for (std::size_t length = 0; length < 300; ++length) lengths.push_back(kSplitFrom - 10 + length);
    std::vector<PlaneBytes> expected;
    at_every_cpu_level([&] {
      const bool is_scalar = core::cpu_level() == core::CpuLevel::Scalar;
      for (std::size_t k = 0; k < lengths.size(); ++k) {
        const PlaneBytes coded = encoded(kStage, std::span(all).first(lengths[k]));
        if (is_scalar) {
          expected.push_back(coded);
        } else {
          ASSERT_EQ(coded, expected[k]) << lengths[k];
        }
      }
    });
  }
}

// The format: these change only with the frame's version.
TEST(HuffmanPlane, test_bytes_are_those_of_version_1) {
  struct Golden {
    PlaneBytes (*make)(std::size_t);
    std::size_t bytes;
    std::uint32_t crc;
  };
  for (const auto& [make, bytes, crc] :
       {Golden{gaussian_plane, 134814, 0xB6592AC1}, Golden{skewed_plane, 119100, 0xDF65F68F},
        Golden{sparse_plane, 20522, 0x2D954561}, Golden{geometric_plane, 38446, 0x98F9756E}}) {
    const PlaneBytes coded = encoded(kStage, make(kBlockBytes + 20001));
    EXPECT_EQ(coded.size(), bytes);
    EXPECT_EQ(core::crc32c(coded), crc) << std::hex << core::crc32c(coded);
  }
}

TEST(HuffmanPlane, test_every_mode_is_chosen_where_it_is_the_best) {
  const PlaneBytes plane =
      joined({uniform_plane(kBlockBytes), gaussian_plane(kBlockBytes), constant_plane(kBlockBytes),
              gaussian_plane(kBlockBytes), sparse_plane(kBlockBytes), sparse_plane(kBlockBytes / 2)});
  const PlaneBytes coded = encoded(kStage, plane);
  const BlockMode expected[] = {BlockMode::Raw,         BlockMode::OwnTable, BlockMode::Single,
                                BlockMode::LatestTable, BlockMode::OwnTable, BlockMode::LatestTable};
  for (std::size_t block = 0; block < std::size(expected); ++block) {
    EXPECT_EQ(head_mode(head_of(coded, block)), expected[block]) << block;
  }
  EXPECT_EQ(head_rest(head_of(coded, 2)), 0xA7U);
  PlaneBytes out(plane.size());
  EXPECT_TRUE(decoded(kStage, coded, out).is_ok());
  EXPECT_EQ(out, plane);
}

TEST(HuffmanPlane, test_table_is_not_shared_where_a_symbol_has_no_code) {
  PlaneBytes plane = joined({two_symbol_plane(kBlockBytes), two_symbol_plane(kBlockBytes)});
  plane.back() = std::byte{9};
  const PlaneBytes coded = encoded(kStage, plane);
  EXPECT_EQ(head_mode(head_of(coded, 1)), BlockMode::OwnTable);
  PlaneBytes out(plane.size());
  EXPECT_TRUE(decoded(kStage, coded, out).is_ok());
  EXPECT_EQ(out, plane);
}

TEST(HuffmanPlane, test_raw_planes_take_the_bound) {
  for (const std::size_t length : {std::size_t{1}, std::size_t{5000}, kBlockBytes, 3 * kBlockBytes + 1}) {
    // The last block, of one byte, is a single symbol.
    const PlaneBytes coded = encoded(kStage, uniform_plane(length));
    EXPECT_EQ(coded.size(), plane_bound(kStage, length) - (length % kBlockBytes == 1 ? 1 : 0));
  }
}

TEST(HuffmanPlane, test_codes_at_the_length_limit_round_trip) {
  // Fibonacci counts, shuffled.
  PlaneBytes plane;
  std::size_t a = 1;
  std::size_t b = 1;
  for (unsigned symbol = 0; plane.size() + b < kBlockBytes; ++symbol) {
    plane.insert(plane.end(), a, static_cast<std::byte>(symbol * 5));
    a = std::exchange(b, a + b);
  }
  TestRandom random(3);
  for (std::size_t i = plane.size(); i > 1; --i) std::swap(plane[i - 1], plane[random.next() % i]);
  at_every_cpu_level([&] {
    const PlaneBytes coded = encoded(kStage, plane);
    EXPECT_EQ(head_mode(head_of(coded, 0)), BlockMode::OwnTable);
    PlaneBytes out(plane.size());
    ASSERT_TRUE(decoded(kStage, coded, out).is_ok());
    ASSERT_EQ(out, plane);
  });
}

TEST(HuffmanPlane, test_size_is_close_to_the_entropy) {
  const PlaneBytes plane = gaussian_plane(8 * kBlockBytes);
  std::array<double, 256> counts{};
  for (const std::byte it : plane) counts[std::to_integer<std::size_t>(it)] += 1;
  double bits = 0;
  for (const double count : counts) {
    if (count > 0) bits -= count * std::log2(count / static_cast<double>(plane.size()));
  }
  EXPECT_LE(static_cast<double>(encoded(kStage, plane).size()), 1.015 * bits / 8);
}

TEST(HuffmanPlane, test_heads_that_cannot_be_are_corrupt) {
  PlaneBytes plane = gaussian_plane(kBlockBytes);
  plane.insert(plane.end(), 9000, std::byte{0});
  std::copy_n(plane.begin(), 9000, plane.begin() + kBlockBytes);
  const PlaneBytes good = encoded(kStage, plane);
  const std::uint32_t first = head_of(good, 0);
  const std::uint32_t second = head_of(good, 1);
  ASSERT_EQ(head_mode(first), BlockMode::OwnTable);
  ASSERT_EQ(head_mode(second), BlockMode::LatestTable);
  const auto expect_corrupt = [&](std::size_t block, std::uint32_t head) {
    PlaneBytes bad = good;
    set_head(bad, block, head);
    EXPECT_FALSE(coded_plane_bytes(kStage, bad, plane.size()).is_ok()) << block << ' ' << std::hex << head;
    EXPECT_EQ(decode_code(bad, plane.size()), core::StatusCode::CorruptData);
  };
  expect_corrupt(0, make_head(BlockMode::LatestTable, head_rest(first)));  // there is no table yet
  expect_corrupt(0, make_head(BlockMode::Raw, head_rest(first)));          // not the block's length
  expect_corrupt(0, make_head(BlockMode::Raw, kHeadMask));
  expect_corrupt(0, make_head(BlockMode::Single, 256));
  expect_corrupt(0, make_head(BlockMode::OwnTable, kHeadMask));
  expect_corrupt(0, make_head(BlockMode::OwnTable, kBlockBytes));
  expect_corrupt(1, make_head(BlockMode::LatestTable, head_rest(second) + 2));  // beyond the end
  expect_corrupt(1, make_head(BlockMode::LatestTable, 9000));
}

TEST(HuffmanPlane, test_substream_sizes_that_cannot_be_are_corrupt) {
  const PlaneBytes plane = gaussian_plane(20000);
  const PlaneBytes good = encoded(kStage, plane);
  ASSERT_EQ(head_mode(head_of(good, 0)), BlockMode::OwnTable);
  const auto sizes_at = kHeadBytes + [&] {
    unsigned symbols = 0;
    for (std::size_t k = 0; k < kTableBitmapBytes; ++k) {
      symbols += static_cast<unsigned>(std::popcount(std::to_integer<unsigned>(good[kHeadBytes + k])));
    }
    return table_bytes(symbols);
  }();
  at_every_cpu_level([&] {
    for (std::size_t k = 0; k < kMaxSubstreams - 1; ++k) {
      std::uint32_t size;
      std::memcpy(&size, good.data() + sizes_at + 4 * k, sizeof(size));
      for (const std::uint32_t wrong :
           {0U, 1U, 15U, size - 2, size - 1, size + 1, size + 2, 0x7FFFFFFFU, ~0U}) {
        PlaneBytes bad = good;
        std::memcpy(bad.data() + sizes_at + 4 * k, &wrong, sizeof(wrong));
        EXPECT_EQ(decode_code(bad, plane.size()), core::StatusCode::CorruptData) << k << ' ' << wrong;
      }
    }
  });
}

// Words that no lane takes.
TEST(HuffmanPlane, test_words_left_over_are_corrupt) {
  for (const std::size_t length : {2000UL, 9000UL}) {
    const PlaneBytes plane = gaussian_plane(length);
    PlaneBytes coded = encoded(kStage, plane);
    coded.insert(coded.end(), 2, std::byte{0});
    set_head(coded, 0, head_of(coded, 0) + 2);
    at_every_cpu_level([&] { EXPECT_EQ(decode_code(coded, length), core::StatusCode::CorruptData); });
  }
}

}  // namespace
}  // namespace geocomm::codec::huffman
