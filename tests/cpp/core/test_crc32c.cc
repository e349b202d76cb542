#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/crc32c.h"

namespace geocomm::core {
namespace {

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> data(size);
  std::uint32_t state = 12345;
  for (auto& byte : data) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return data;
}

void expect_both(std::span<const std::byte> data, std::uint32_t expected) {
  EXPECT_EQ(crc32c(data), expected);
  EXPECT_EQ(crc32c_portable(data), expected);
}

// RFC 3720, appendix B.4, and the usual check value.
TEST(Crc32c, test_crc32c_published_vectors_match) {
  const std::string_view digits = "123456789";
  expect_both(std::as_bytes(std::span(digits)), 0xE3069283);
  std::vector<std::byte> data(32, std::byte{0});
  expect_both(data, 0x8A9136AA);
  data.assign(32, std::byte{0xFF});
  expect_both(data, 0x62A8AB43);
  for (std::size_t i = 0; i < 32; ++i) data[i] = static_cast<std::byte>(i);
  expect_both(data, 0x46DD794E);
  for (std::size_t i = 0; i < 32; ++i) data[i] = static_cast<std::byte>(31 - i);
  expect_both(data, 0x113FDB5C);
}

TEST(Crc32c, test_crc32c_no_bytes_keeps_previous) {
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c({}, 0xE3069283), 0xE3069283u);
}

TEST(Crc32c, test_crc32c_any_length_and_alignment_equals_portable) {
  const auto data = pattern(20000);
  for (const std::size_t size : {0, 1, 7, 8, 9, 63, 1024, 3071, 3072, 3073, 6143, 6144, 9999, 19990}) {
    for (std::size_t offset = 0; offset < 9; ++offset) {
      const auto part = std::span(data).subspan(offset, size);
      EXPECT_EQ(crc32c(part), crc32c_portable(part)) << size << " bytes at " << offset;
    }
  }
}

TEST(Crc32c, test_crc32c_continued_equals_whole) {
  const auto data = pattern(10000);
  const std::uint32_t whole = crc32c(data);
  for (const std::size_t cut : {0, 1, 8, 3072, 5000, 9999, 10000}) {
    EXPECT_EQ(crc32c(std::span(data).subspan(cut), crc32c(std::span(data).first(cut))), whole);
  }
}

TEST(Crc32c, test_crc32c_any_flipped_bit_differs) {
  auto data = pattern(4000);
  const std::uint32_t whole = crc32c(data);
  for (std::size_t i = 0; i < data.size(); i += 37) {
    data[i] ^= std::byte{0x10};
    EXPECT_NE(crc32c(data), whole);
    data[i] ^= std::byte{0x10};
  }
}

}  // namespace
}  // namespace geocomm::core
