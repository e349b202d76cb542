// Headers: what is written can be read, and nothing else.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "core/crc32c.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {
namespace {

using core::StatusCode;

WireHeader sample() {
  WireHeader header = make_header(PacketType::Segment);
  header.sequence = 0xA1A2A3A4A5A6A7A8;
  header.group = 0x1122334455667788;
  header.op = 42;
  header.descriptor = 0xFEDCBA9876543210;
  header.chunk = 3;
  header.chunk_count = 5;
  header.chunk_bytes = 600'000;
  header.offset = 2 * kMaxSegmentBytes;
  header.length = 600'000 - 2 * kMaxSegmentBytes;
  return header;
}

TEST(Wire, test_header_bytes_are_those_of_the_table) {
  const HeaderBytes bytes = encode_header(sample());
  const auto at = [&](std::size_t i) { return std::to_integer<int>(bytes[i]); };
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), 4), "GOCT");
  EXPECT_EQ(at(4), 2);
  EXPECT_EQ(at(5), 4);
  EXPECT_EQ(at(8), 0xA8);
  EXPECT_EQ(at(15), 0xA1);
  EXPECT_EQ(at(16), 0x88);
  EXPECT_EQ(at(23), 0x11);
  EXPECT_EQ(at(24), 42);
  EXPECT_EQ(at(32), 0x10);
  EXPECT_EQ(at(40), 3);
  EXPECT_EQ(at(44), 5);
  EXPECT_EQ(at(48), 600'000 % 256);
  EXPECT_EQ(at(52), 0);
  EXPECT_EQ(at(54), 8);
  std::uint32_t crc = 0;
  std::memcpy(&crc, bytes.data() + 60, 4);
  EXPECT_EQ(crc, core::crc32c(std::span(bytes).first(60)));
}

TEST(Wire, test_header_round_trip_keeps_every_field) {
  const auto parsed = parse_header(encode_header(sample()));
  ASSERT_TRUE(parsed.is_ok());
  EXPECT_EQ(encode_header(*parsed), encode_header(sample()));
  EXPECT_TRUE(check_segment(*parsed).is_ok());
}

TEST(Wire, test_every_flipped_bit_is_found) {
  const HeaderBytes good = encode_header(sample());
  for (std::size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    HeaderBytes bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(parse_header(bad).status().code(), StatusCode::CorruptData) << bit;
  }
}

TEST(Wire, test_other_version_is_a_version_mismatch) {
  HeaderBytes bytes = encode_header(sample());
  bytes[4] = std::byte{1};
  const std::uint32_t crc = core::crc32c(std::span(bytes).first(60));
  std::memcpy(bytes.data() + 60, &crc, 4);
  EXPECT_EQ(parse_header(bytes).status().code(), StatusCode::VersionMismatch);
  EXPECT_TRUE(parse_header_of_any_version(bytes).is_ok());
}

TEST(Wire, test_prefix_of_a_header_may_be_one_and_noise_may_not) {
  const HeaderBytes bytes = encode_header(sample());
  for (std::size_t length = 0; length <= kHeaderBytes; ++length) {
    EXPECT_TRUE(may_be_header(std::span(bytes).first(length)));
  }
  const std::array<std::byte, 2> noise = {std::byte{'G'}, std::byte{'E'}};
  EXPECT_TRUE(may_be_header(std::span(noise).first(1)));
  EXPECT_FALSE(may_be_header(noise));
}

TEST(Wire, test_ack_round_trip_keeps_every_field) {
  const AckPacket sent{.control_received = 9, .low = 130, .base = 192, .bits = 0x8000000000000001};
  const auto ack = parse_ack(make_ack(sent));
  ASSERT_TRUE(ack.is_ok());
  EXPECT_EQ(ack->control_received, 9U);
  EXPECT_EQ(ack->low, 130U);
  EXPECT_EQ(ack->base, 192U);
  EXPECT_EQ(ack->bits, sent.bits);
}

TEST(Wire, test_ack_fields_that_contradict_are_corrupt) {
  const std::uint64_t all = ~std::uint64_t{0};
  for (const AckPacket& bad :
       {AckPacket{0, 0, 0, 0}, AckPacket{0, 1, 1, 0}, AckPacket{0, 130, 64, 0}, AckPacket{0, all, 0, 0},
        AckPacket{0, 1, kMaxNumberSpan + 64, 1}, AckPacket{0, 1, all - 63, all}}) {
    EXPECT_EQ(parse_ack(make_ack(bad)).status().code(), StatusCode::CorruptData)
        << bad.low << " " << bad.base;
  }
}

TEST(Wire, test_segments_cover_every_chunk_exactly) {
  for (const std::uint32_t bytes : {0U, 1U, kMaxSegmentBytes - 1, kMaxSegmentBytes, kMaxSegmentBytes + 1,
                                    3 * kMaxSegmentBytes, kMaxChunkBytes}) {
    std::uint32_t offset = 0;
    for (std::uint32_t i = 0; i < segment_count(bytes); ++i) {
      WireHeader header = make_header(PacketType::Segment);
      header.chunk_count = 1;
      header.chunk_bytes = bytes;
      header.offset = offset;
      header.length = segment_length(bytes, offset);
      EXPECT_TRUE(check_segment(header).is_ok()) << bytes << " at " << offset;
      offset += header.length;
    }
    EXPECT_EQ(offset, bytes);
  }
}

}  // namespace
}  // namespace geocomm::transport
