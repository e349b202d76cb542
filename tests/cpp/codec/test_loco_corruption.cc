// Frames of Loco that no encoder wrote.
#include <gtest/gtest.h>

#include "codec/quantizers/loco/loco_format.h"
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

// Three places in 1024 elements: of each eight low bits, then six bits of unary part, and two of padding.
Bytes three_places(std::uint32_t lows, std::uint32_t unary) {
  constexpr LocoPlaces kShape{1024, 3};
  static_assert(kShape.low_bits() == 8 && kShape.high_bits() == 6 && kShape.bytes() == 4);
  const std::uint32_t places = lows | unary << 24;
  Bytes payload(sizeof(LocoHead) + loco_record_bytes(kShape));
  const std::uint16_t k = 12;
  std::memcpy(payload.data(), &k, 2);
  const std::uint16_t levels[] = {0x3F80, 0x4000};
  std::memcpy(payload.data() + sizeof(LocoHead), levels, 4);
  std::memcpy(payload.data() + sizeof(LocoHead) + 4, &places, 4);
  payload.back() = std::byte{0b00'10'01'00};
  return frame_of(spec_of("loco"), 1024, payload);
}

TEST(LocoCorruption, test_well_formed_payload_is_read) {
  const auto values = accumulated(three_places(0xFF'02'01, 0b100101), 1024);
  EXPECT_EQ(values[0x001], 1.0f);
  EXPECT_EQ(values[0x102], 2.0f);
  EXPECT_EQ(values[0x3FF], -1.0f);
  EXPECT_EQ(std::ranges::count(values, 0.0f), 1021);
  EXPECT_EQ(accumulated(three_places(0xFF'FE'FD, 0b111000), 1024)[0x3FD], 1.0f);  // the last three
}

TEST(LocoCorruption, test_forged_places_are_refused) {
  expect_forgery_refused(three_places(0x03'02'02, 0b000111), 1024);           // twice the same
  expect_forgery_refused(three_places(0x03'01'02, 0b000111), 1024);           // not in order
  expect_forgery_refused(three_places(0x00'03'02, 0b010011 | 1 << 6), 1024);  // four
  expect_forgery_refused(three_places(0x01'03'02, 0b110011), 1024);
  expect_forgery_refused(three_places(0x03'02'01, 0b000011), 1024);  // two
  expect_forgery_refused(three_places(0x03'02'01, 0), 1024);
  expect_forgery_refused(three_places(0x03'02'01, 0b1000011), 1024);  // the third behind the last bit
  expect_forgery_refused(three_places(0x03'02'01, 0b10000011), 1024);
  expect_forgery_refused(three_places(0x03'02'01, 0b11111111), 1024);
}

TEST(LocoCorruption, test_places_behind_a_short_chunk_are_refused) {
  std::vector<float> values(1000, 0.0f);
  for (const std::size_t last : {997, 998, 999}) values[last] = 1.0f;
  CodecSpec spec = spec_of("loco");
  spec.k = 12;
  const Bytes good = compressed(spec, DType::Float32, to_bytes(values));
  EXPECT_EQ(accumulated(good, 1000)[999], 1.0f);
  for (const std::uint8_t low : {1000 % 256, 255}) {
    expect_forgery_refused(with_value(good, kLocoPlaces + 2, low), 1000);
  }
}

// In whole chunks, which the fast paths read.
TEST(LocoCorruption, test_forged_places_of_whole_chunks_are_refused) {
  for (const char* text : {"loco", "loco:k=128", "loco:k=2048"}) {
    const CodecSpec spec = spec_of(text);
    const Bytes good = compressed(spec, DType::Float32, to_bytes(gaussian(2 * kTopKChunk)));
    const LocoPlaces shape{kTopKChunk, spec.k};
    const std::size_t unary = shape.bytes() * 8 - shape.count * shape.low_bits();
    for (const std::size_t record : {std::size_t{0}, loco_record_bytes(shape)}) {
      const std::size_t end = kLocoPlaces + record + shape.bytes();
      // One more or one less.
      for (std::size_t bit = 0; bit < unary; bit += 1 + unary / 130) {
        Bytes bad = good;
        bad[end - 1 - bit / 8] ^= static_cast<std::byte>(0x80u >> bit % 8);
        expect_forgery_refused(bad, 2 * kTopKChunk);
      }
      // None, all.
      for (const int fill : {0x00, 0xFF}) {
        Bytes bad = good;
        std::fill_n(bad.begin() + static_cast<std::ptrdiff_t>(end - unary / 8), unary / 8,
                    static_cast<std::byte>(fill));
        expect_forgery_refused(bad, 2 * kTopKChunk);
      }
    }
  }
  // The first two of four thousand zeros share what is above their low bits.
  const Bytes good = compressed(spec_of("loco"), DType::Float32, to_bytes(std::vector<float>(kTopKChunk)));
  for (const std::uint8_t lows : {0x00, 0x01}) {  // 0 and 0; 1 and 0
    expect_forgery_refused(with_value(good, kLocoPlaces, lows), kTopKChunk);
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
  for (const std::size_t record : {kLocoRecord, kLocoRecord + loco_record_bytes({kTopKChunk, 64})}) {
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
