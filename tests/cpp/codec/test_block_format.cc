// The payloads of the block codecs, byte by byte, as docs/spec/codecs.md has them.
#include <gtest/gtest.h>

#include <array>

#include "codec_cases.h"

namespace geocomm::codec {
namespace {

std::uint16_t scale_at(const Bytes& frame, std::size_t block) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, frame.data() + sizeof(FrameHeader) + 2 * block, 2);
  return bits;
}

std::vector<int> codes_of(const Bytes& frame, std::size_t blocks) {
  std::vector<int> codes;
  for (std::size_t i = sizeof(FrameHeader) + 2 * blocks; i < frame.size(); ++i) {
    codes.push_back(static_cast<int>(frame[i]));
  }
  return codes;
}

// The sum of the wire format, over values that need no scaling (a peak in [1, 2)).
float folded_sum(std::span<const float> terms) {
  std::array<float, 128> sums{};
  for (std::size_t i = 0; i < terms.size(); ++i) sums[i % 128] += terms[i];
  for (std::size_t half = 64; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

std::vector<float> block_with_peak_of_one(std::size_t count) {
  auto values = gaussian(count, 0.2f);
  for (float& value : values) value = std::clamp(value, -0.99f, 0.99f);
  values[count / 2] = 1.25f;
  return values;
}

class BlockFormat : public testing::TestWithParam<std::size_t> {
 protected:
  const std::vector<float> values_ = block_with_peak_of_one(GetParam());

  Bytes frame(const char* codec) const {
    CodecSpec spec = spec_of(codec);
    spec.block = kMaxBlock;
    return compressed(spec, DType::Float32, to_bytes(values_));
  }
  float rms() const {
    std::vector<float> squares;
    for (const float value : values_) squares.push_back(value * value);
    return std::sqrt(folded_sum(squares) / static_cast<float>(values_.size()));
  }
};

TEST_P(BlockFormat, test_bit2_is_four_quarters_of_two_bits) {
  const Bytes bytes = frame("bit2");
  ASSERT_EQ(scale_at(bytes, 0), core::float_to_bfloat16(rms()));
  const float scale = core::bfloat16_to_float(scale_at(bytes, 0));
  const std::size_t quarter = (values_.size() + 3) / 4;
  std::vector<int> expected(quarter, 0);
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const int large = std::abs(values_[i]) >= 0.981598794f * scale ? 1 : 0;
    const int negative = std::signbit(values_[i]) ? 2 : 0;
    expected[i % quarter] |= (large | negative) << (2 * (i / quarter));
  }
  EXPECT_EQ(codes_of(bytes, 1), expected);
  const auto decoded = accumulated(bytes, values_.size());
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const bool large = std::abs(values_[i]) >= 0.981598794f * scale;
    ASSERT_EQ(decoded[i], std::copysign((large ? 1.51041758f : 0.452780038f) * scale, values_[i]));
  }
}

TEST_P(BlockFormat, test_bit1_is_the_signs_in_order) {
  const Bytes bytes = frame("bit1");
  std::vector<float> magnitudes;
  for (const float value : values_) magnitudes.push_back(std::abs(value));
  const float mean = folded_sum(magnitudes) / static_cast<float>(values_.size());
  ASSERT_EQ(scale_at(bytes, 0), core::float_to_bfloat16(mean));
  std::vector<int> expected((values_.size() + 7) / 8, 0);
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (std::signbit(values_[i])) expected[i / 8] |= 1 << (i % 8);
  }
  EXPECT_EQ(codes_of(bytes, 1), expected);
  const auto decoded = accumulated(bytes, values_.size());
  for (std::size_t i = 0; i < values_.size(); ++i) {
    ASSERT_EQ(decoded[i], std::copysign(core::bfloat16_to_float(scale_at(bytes, 0)), values_[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, BlockFormat, testing::Values(1, 5, 64, 127, 128, 129, 256, 999, 4096));

constexpr std::string_view kSpecs[] = {"int8:block=64", "int4:block=64",         "bit2:block=64",
                                       "bit1:block=64", "int8:block=64+huffman", "bf16+huffman"};

class ForgedBlocks : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    values_ = gaussian(1000);
    if (spec_.has_blocks()) values_[100] = kNan;
    frame_ = compressed(spec_, DType::Float32, to_bytes(values_));
  }

  // A frame of the same header with that payload.
  Bytes with_payload(std::span<const std::byte> payload) const {
    Bytes bytes(frame_.begin(), frame_.begin() + sizeof(FrameHeader));
    const std::uint64_t size = payload.size();
    std::memcpy(bytes.data() + offsetof(FrameHeader, payload_bytes), &size, sizeof(size));
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    reseal(bytes);
    return bytes;
  }

  // Refused, and a sum is as it was.
  static void expect_corrupt(const Bytes& frame) {
    const auto before = gaussian(1000, 2.0f, 8);
    auto sum = before;
    EXPECT_EQ(decompress_accumulate(frame, sum, Accumulate::Add).code(), StatusCode::CorruptData);
    EXPECT_TRUE(same_bits(sum, before));
    Bytes out(4000);
    EXPECT_EQ(decompress(frame, out).code(), StatusCode::CorruptData);
  }

  const CodecSpec spec_ = spec_of(GetParam());
  std::vector<float> values_;
  Bytes frame_;
};

TEST_P(ForgedBlocks, test_payload_of_any_other_length_is_refused) {
  const auto payload = std::span(frame_).subspan(sizeof(FrameHeader));
  for (std::size_t size = 0; size < payload.size(); ++size) expect_corrupt(with_payload(payload.first(size)));
  Bytes longer(payload.begin(), payload.end());
  for (int more = 0; more < 8; ++more) {
    longer.push_back(std::byte{0});
    expect_corrupt(with_payload(longer));
  }
}

TEST_P(ForgedBlocks, test_scale_out_of_range_is_refused) {
  if (!spec_.has_blocks()) return;
  const std::uint16_t largest = spec_.id == CodecId::Int8   ? 0x7C01
                                : spec_.id == CodecId::Int4 ? 0x7E12
                                : spec_.id == CodecId::Bit2 ? 0x7F29
                                                            : 0x7F7F;
  for (const int bits : {0, 0x7F, largest + 1, 0x7F81, 0x7FC0, 0x8080, 0xFF80, 0xFFFF}) {
    if (bits == 0x7F80) continue;
    Bytes bad = frame_;
    const auto scale = static_cast<std::uint16_t>(bits);
    std::memcpy(bad.data() + sizeof(FrameHeader), &scale, 2);
    reseal(bad);
    expect_corrupt(bad);
  }
  // A scale in range: another block, or fewer raw elements than are there.
  Bytes bad = frame_;
  const std::uint16_t raw = 0x7F80;
  std::memcpy(bad.data() + sizeof(FrameHeader), &raw, 2);
  reseal(bad);
  expect_corrupt(bad);
  std::memcpy(bad.data() + sizeof(FrameHeader), &largest, 2);
  std::memcpy(bad.data() + sizeof(FrameHeader) + 2, &largest, 2);
  reseal(bad);
  expect_corrupt(bad);
}

INSTANTIATE_TEST_SUITE_P(Codecs, ForgedBlocks, testing::ValuesIn(kSpecs), case_name);

}  // namespace
}  // namespace geocomm::codec
