// Frames of Loco that no encoder wrote.
#include <gtest/gtest.h>

#include "codec/loco_format.h"
#include "forged_frames.h"
#include "top_k_cases.h"

namespace geocomm::codec {
namespace {

constexpr std::size_t kLocoPayload = sizeof(FrameHeader);  // of the payload
constexpr std::size_t kLocoRecord = kLocoPayload + sizeof(LocoHead);
constexpr std::size_t kLocoPlaces = kLocoRecord + sizeof(LocoLevels);

template <typename T>
Bytes with_value(Bytes frame, std::size_t at, T value) {
  std::memcpy(frame.data() + at, &value, sizeof(value));
  return frame;
}

// A frame of one chunk that has three places: 0x001, 0x102 and 0x203.
Bytes three_places(std::uint32_t elements, std::uint32_t first, std::uint32_t second, std::uint32_t third) {
  const std::uint64_t places = first | std::uint64_t{second} << 12 | std::uint64_t{third} << 24;
  Bytes payload(sizeof(LocoHead) + loco_record_bytes(3));
  const std::uint16_t k = static_cast<std::uint16_t>(3 * 4096 / elements);
  std::memcpy(payload.data(), &k, 2);
  const std::uint16_t levels[] = {0x3F80, 0x4000};
  std::memcpy(payload.data() + sizeof(LocoHead), levels, 4);
  std::memcpy(payload.data() + sizeof(LocoHead) + 4, &places, loco_place_bytes(3));
  payload.back() = std::byte{0b00'10'01'00};
  return frame_of(spec_of("loco"), elements, payload);
}

TEST(LocoCorruption, test_well_formed_payload_is_read) {
  const auto values = accumulated(three_places(1024, 0x001, 0x102, 0x3FF), 1024);
  EXPECT_EQ(values[0x001], 1.0f);
  EXPECT_EQ(values[0x102], 2.0f);
  EXPECT_EQ(values[0x3FF], -1.0f);
  EXPECT_EQ(std::ranges::count(values, 0.0f), 1021);
}

TEST(LocoCorruption, test_forged_places_are_refused) {
  expect_forgery_refused(three_places(1024, 1, 2, 1024), 1024);  // behind the chunk
  expect_forgery_refused(three_places(1024, 1, 2, 4095), 1024);  // far behind it
  expect_forgery_refused(three_places(1024, 2, 2, 3), 1024);     // twice the same
  expect_forgery_refused(three_places(1024, 2, 1, 3), 1024);     // not in order
  expect_forgery_refused(three_places(1024, 1, 1023, 0), 1024);  // the last before the first
  // In whole chunks, which the fast paths read.
  const Bytes good = compressed(spec_of("loco"), DType::Float32, to_bytes(gaussian(2 * kTopKChunk)));
  const std::size_t second = kLocoPlaces + loco_record_bytes(64);
  for (const std::size_t places : {kLocoPlaces, second}) {
    for (std::size_t pair = 0; pair < 32; ++pair) {
      Bytes bad = good;
      std::memcpy(bad.data() + places + 3 * pair, good.data() + places + (pair == 0 ? 93 : 0), 3);
      if (pair == 0 || !std::ranges::equal(bad, good)) expect_forgery_refused(bad, 2 * kTopKChunk);
    }
  }
}

TEST(LocoCorruption, test_forged_heads_are_refused) {
  const Bytes good = compressed(spec_of("loco"), DType::Float32, to_bytes(gaussian(5000)));
  for (const std::uint16_t k : {0, 1, 63, 65, 2048, 2049, 65535}) {
    expect_forgery_refused(with_value(good, kLocoPayload, k), 5000);
  }
  expect_forgery_refused(with_value(good, kLocoPayload + 2, std::uint16_t{1}), 5000);
  expect_forgery_refused(with_value(good, offsetof(FrameHeader, flags), std::uint8_t{2}), 5000);  // a stage
  expect_forgery_refused(with_value(good, offsetof(FrameHeader, flags), std::uint8_t{1}), 5000);  // rounding
  expect_forgery_refused(with_value(good, offsetof(FrameHeader, block), std::uint32_t{256}),
                         5000);  // a block
}

TEST(LocoCorruption, test_levels_out_of_range_and_raw_chunks_without_values_are_refused) {
  const Bytes good = compressed(spec_of("loco"), DType::Float32, to_bytes(gaussian(5000)));
  for (const std::size_t record : {kLocoRecord, kLocoRecord + loco_record_bytes(64)}) {
    for (const std::uint16_t level : {0x7F80, 0x7F81, 0x8000, 0xFFFF}) {
      expect_forgery_refused(with_value(good, record, level), 5000);
      expect_forgery_refused(with_value(good, record + 2, level), 5000);
    }
  }
}

class LocoDamage : public testing::TestWithParam<std::string_view> {
 protected:
  static constexpr std::size_t kElements = 5000;
  const CodecSpec spec_ = spec_of(GetParam());
  Bytes good() const {
    auto values = gaussian(kElements);
    values[4500] = kInf;
    return compressed(spec_, DType::Float32, to_bytes(values));
  }
};

TEST_P(LocoDamage, test_payloads_of_other_lengths_are_refused) {
  const Bytes frame = good();
  const auto payload = std::span(frame).subspan(kLocoPayload);
  for (std::size_t size = 0; size < payload.size(); size += 1 + size / 40) {
    expect_forgery_refused(frame_of(spec_, kElements, payload.first(size)), kElements);
  }
  for (const std::size_t more : {1, 2, 4, 64, 256}) {
    Bytes longer(payload.size() + more);
    std::ranges::copy(payload, longer.begin());
    expect_forgery_refused(frame_of(spec_, kElements, longer), kElements);
  }
}

// Any byte may be any other: refused with the sums as they were, or read as something else.
TEST_P(LocoDamage, test_damaged_bytes_do_no_harm) {
  const Bytes frame = good();
  const auto before = gaussian(kElements, 1.0f, 2);
  for (std::size_t at = kLocoPayload; at < frame.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xFF}) {
      Bytes bad = frame;
      bad[at] ^= static_cast<std::byte>(flip);
      reseal(bad);
      auto sum = before;
      const auto status = decompress_accumulate(bad, sum, Accumulate::Add);
      if (!status.is_ok()) {
        ASSERT_EQ(status.code(), StatusCode::CorruptData);
        ASSERT_TRUE(same_bits(sum, before)) << at;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, LocoDamage, testing::Values("loco", "loco:k=41", "loco:k=700"), case_name);

}  // namespace
}  // namespace geocomm::codec
