// Dead-zone frames that no encoder wrote, with checksums that are right.
#include <gtest/gtest.h>

#include "codec_cases.h"
#include "forged_frames.h"

namespace geocomm::codec {
namespace {

constexpr std::size_t kZoneElements = 200;
constexpr std::size_t kZoneBlocks = 4;
constexpr std::size_t kZoneBitmapAt = sizeof(FrameHeader) + 2 * kZoneBlocks;
constexpr std::size_t kZoneBitmapBytes = 25;

// Blocks of 64, no stage; block 1 is raw.
Bytes good_frame() {
  auto values = gaussian(kZoneElements);
  values[64 + 3] = kInf;
  return compressed(spec_of("deadzone:block=64+none"), DType::Float32, to_bytes(values));
}

TEST(ForgedDeadZone, test_bad_step_is_corrupt) {
  for (const std::uint16_t step : {0x0000, 0x007F, 0x7C00, 0x7F7F, 0x7FC0, 0x8080, 0xFF80}) {
    Bytes frame = good_frame();
    std::memcpy(frame.data() + sizeof(FrameHeader), &step, sizeof(step));
    expect_forgery_refused(frame, kZoneElements);
  }
}

TEST(ForgedDeadZone, test_step_that_changes_which_blocks_are_raw_is_corrupt) {
  Bytes frame = good_frame();
  const std::uint16_t raw = 0x7F80;
  std::memcpy(frame.data() + sizeof(FrameHeader), &raw, sizeof(raw));
  expect_forgery_refused(frame, kZoneElements);
  frame = good_frame();
  const std::uint16_t step = 0x3F80;
  std::memcpy(frame.data() + sizeof(FrameHeader) + 2, &step, sizeof(step));
  expect_forgery_refused(frame, kZoneElements);
}

TEST(ForgedDeadZone, test_any_other_bitmap_is_corrupt_where_the_count_differs) {
  for (std::size_t at = 0; at < kZoneBitmapBytes; ++at) {
    for (const int bit : {0, 7}) {
      Bytes frame = good_frame();
      frame[kZoneBitmapAt + at] ^= static_cast<std::byte>(1 << bit);
      expect_forgery_refused(frame, kZoneElements);
    }
  }
}

TEST(ForgedDeadZone, test_bit_of_raw_block_is_corrupt) {
  // A code moves from block 0 to the raw block, so that the count fits.
  Bytes frame = good_frame();
  const auto first = static_cast<unsigned>(frame[kZoneBitmapAt]);
  ASSERT_NE(first, 0u);
  frame[kZoneBitmapAt] = static_cast<std::byte>(first & (first - 1));
  ASSERT_EQ(frame[kZoneBitmapAt + 8], std::byte{0});
  frame[kZoneBitmapAt + 8] = std::byte{1};
  expect_forgery_refused(frame, kZoneElements);
}

TEST(ForgedDeadZone, test_bit_beyond_the_elements_is_corrupt) {
  auto values = gaussian(197);
  Bytes frame = compressed(spec_of("deadzone:block=64+none"), DType::Float32, to_bytes(values));
  const auto first = static_cast<unsigned>(frame[kZoneBitmapAt]);
  frame[kZoneBitmapAt] = static_cast<std::byte>(first & (first - 1));
  frame[kZoneBitmapAt + 24] |= std::byte{0x20};
  reseal(frame);
  Bytes out(197 * sizeof(float));
  EXPECT_EQ(decompress(frame, out).code(), StatusCode::CorruptData);
}

TEST(ForgedDeadZone, test_truncated_or_longer_payload_is_corrupt) {
  for (const char* text : {"deadzone:block=64+none", "deadzone:block=64"}) {
    auto values = gaussian(kZoneElements);
    values[70] = kNan;
    const Bytes good = compressed(spec_of(text), DType::Float32, to_bytes(values));
    for (std::size_t size = sizeof(FrameHeader); size < good.size(); ++size) {
      Bytes frame(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
      set_payload_bytes(frame);
      expect_forgery_refused(frame, kZoneElements);
    }
    Bytes longer = good;
    longer.push_back(std::byte{0});
    set_payload_bytes(longer);
    expect_forgery_refused(longer, kZoneElements);
  }
}

// Codes that no encoder writes, 0 and -128, are decoded as they are, and stay finite.
TEST(ForgedDeadZone, test_any_code_decodes_to_a_finite_value) {
  const std::vector<float> values(64, 1.0f);
  for (const int code : {0, -128, 127}) {
    Bytes frame = compressed(spec_of("deadzone:block=64+none"), DType::Float32, to_bytes(values));
    const std::uint16_t step = 0x7BFF;
    std::memcpy(frame.data() + sizeof(FrameHeader), &step, sizeof(step));
    frame[sizeof(FrameHeader) + 2 + 8] = static_cast<std::byte>(code);
    reseal(frame);
    at_every_cpu_level([&] {
      const auto decoded = accumulated(frame, 64);
      EXPECT_EQ(decoded[0], static_cast<float>(code) * core::bfloat16_to_float(step));
      EXPECT_TRUE(std::isfinite(decoded[0]));
    });
  }
}

}  // namespace
}  // namespace geocomm::codec
