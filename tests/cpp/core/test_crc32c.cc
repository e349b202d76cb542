#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/cpu.h"
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

// Calls `check` at each level this machine has, then goes back to the level in use.
template <typename Check>
void at_every_level(Check check) {
  const CpuLevel before = cpu_level();
  for (const CpuLevel level : cpu_levels()) {
    ASSERT_TRUE(force_cpu_level(level).is_ok());
    SCOPED_TRACE(to_string(level));
    check();
  }
  ASSERT_TRUE(force_cpu_level(before).is_ok());
}

void expect_both(std::span<const std::byte> data, std::uint32_t expected) {
  at_every_level([&] { EXPECT_EQ(crc32c(data), expected); });
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
  const auto data = pattern(2100);
  for (const std::size_t offset : {0, 1, 3, 8, 17, 63}) {
    const auto from = std::span(data).subspan(offset);
    std::vector<std::uint32_t> expected(2001);
    for (std::size_t size = 0; size < 2000; ++size) {
      expected[size + 1] = crc32c_portable(from.subspan(size, 1), expected[size]);
    }
    at_every_level([&] {
      for (std::size_t size = 0; size <= 2000; ++size) {
        ASSERT_EQ(crc32c(from.first(size)), expected[size]) << size << " bytes at " << offset;
      }
    });
  }
}

// Around the units of the fast paths.
TEST(Crc32c, test_crc32c_long_data_equals_portable) {
  const auto data = pattern(70000);
  for (const std::size_t size :
       {3071, 3072, 3073, 4096, 6143, 9999, 13311, 13312, 13313, 16384, 40001, 69990}) {
    for (const std::size_t offset : {0, 1, 7}) {
      const auto part = std::span(data).subspan(offset, size);
      const std::uint32_t expected = crc32c_portable(part);
      at_every_level([&] { EXPECT_EQ(crc32c(part), expected) << size << " bytes at " << offset; });
    }
  }
}

TEST(Crc32c, test_crc32c_continued_equals_whole) {
  const auto data = pattern(30000);
  const std::uint32_t whole = crc32c_portable(data);
  at_every_level([&] {
    for (const std::size_t cut : {0, 1, 8, 256, 3072, 5000, 14000, 29999, 30000}) {
      EXPECT_EQ(crc32c(std::span(data).subspan(cut), crc32c(std::span(data).first(cut))), whole);
    }
  });
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
