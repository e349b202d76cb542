#include <gtest/gtest.h>

#include "top_k_cases.h"

namespace geocomm::codec {
namespace {

constexpr std::size_t kAt = sizeof(FrameHeader);  // of the payload

// Refused, with the sums as they were.
void expect_corrupt(const Bytes& frame, std::size_t elements) {
  const auto before = gaussian(elements);
  auto sum = before;
  EXPECT_EQ(decompress_accumulate(frame, sum, Accumulate::Add).code(), StatusCode::CorruptData);
  EXPECT_TRUE(same_bits(sum, before));
  Bytes out(4 * elements);
  EXPECT_EQ(decompress(frame, out).code(), StatusCode::CorruptData);
}

constexpr std::uint8_t kGaps = 0;
constexpr std::uint8_t kBitmap = 1;
constexpr float kTwo[] = {1.0f, 2.0f};

TEST(TopKCorruption, test_well_formed_payloads_are_read) {
  const CodecSpec spec = spec_of("topk");
  const auto gaps =
      accumulated(frame_of(spec, 300, payload_of({2, 3, kGaps, 0, 0}, {1, 255, 42}, kTwo)), 300);
  EXPECT_EQ(gaps[1], 1.0f);
  EXPECT_EQ(gaps[299], 2.0f);
  EXPECT_EQ(std::ranges::count(gaps, 0.0f), 298);
  const auto bits = accumulated(frame_of(spec, 11, payload_of({2, 2, kBitmap, 0, 0}, {1, 4}, kTwo)), 11);
  EXPECT_EQ(bits[0], 1.0f);
  EXPECT_EQ(bits[10], 2.0f);
}

TEST(TopKCorruption, test_forged_heads_are_refused) {
  const CodecSpec spec = spec_of("topk");
  const auto refused = [&](const TopKHead& head, std::initializer_list<int> index) {
    expect_corrupt(frame_of(spec, 300, payload_of(head, index, kTwo)), 300);
  };
  refused({2, 2, 2, 0, 0}, {1, 1});               // mode
  refused({2, 2, kGaps, 4, 0}, {1, 1});           // values
  refused({2, 2, kGaps, 0, 1}, {1, 1});           // reserved
  refused({301, 2, kGaps, 0, 0}, {1, 1});         // more than there are elements
  refused({0, 2, kGaps, 0, 0}, {1, 1});           // places of nothing
  refused({0, 0, kGaps, 0, 0}, {});               // values of nothing
  refused({2, 0, kGaps, 0, 0}, {});               // no places
  refused({2, 1, kGaps, 0, 0}, {1});              // too few
  refused({2, 4, kGaps, 0, 0}, {1, 255, 0, 1});   // more 255 than the frame has room for
  refused({2, 0xFFFFFFFF, kGaps, 0, 0}, {1, 1});  // of any size
  refused({2, 2, kBitmap, 0, 0}, {1, 1});         // bitmap of another size
  refused({1, 2, kGaps, 0, 0}, {1, 1});           // one value and two places
  refused({3, 3, kGaps, 0, 0}, {1, 1, 1});        // three places and two values
}

TEST(TopKCorruption, test_forged_places_are_refused) {
  const CodecSpec spec = spec_of("topk");
  const auto refused = [&](std::uint8_t mode, std::uint32_t elements, std::initializer_list<int> index) {
    const TopKHead head{2, static_cast<std::uint32_t>(index.size()), mode, 0, 0};
    expect_corrupt(frame_of(spec, elements, payload_of(head, index, kTwo)), elements);
  };
  refused(kGaps, 256, {1, 254});       // behind the end
  refused(kGaps, 300, {1, 255, 43});   // behind the end
  refused(kGaps, 300, {255, 1, 255});  // ends inside a place
  refused(kGaps, 300, {255, 255, 1});  // one place only
  refused(kGaps, 600, {1, 1, 1});      // three places
  refused(kBitmap, 11, {1, 8});        // behind the end
  refused(kBitmap, 11, {1, 0});        // one place
  refused(kBitmap, 11, {1, 6});        // three places
}

class TopKDamage : public testing::TestWithParam<std::string_view> {
 protected:
  const CodecSpec spec_ = spec_of(GetParam());
  const std::vector<float> values_ = gaussian(5000);
  const Bytes good_ = compressed(spec_, DType::Float32, to_bytes(values_));
};

TEST_P(TopKDamage, test_truncated_payloads_are_refused) {
  for (std::size_t size = 0; size < good_.size() - kAt; ++size) {
    expect_corrupt(frame_of(spec_, 5000, std::span(good_).subspan(kAt, size)), 5000);
  }
}

TEST_P(TopKDamage, test_longer_payloads_are_refused) {
  for (const std::size_t more : {1, 2, 3, 4, 64}) {
    Bytes payload(good_.size() - kAt + more);
    std::copy(good_.begin() + kAt, good_.end(), payload.begin());
    expect_corrupt(frame_of(spec_, 5000, payload), 5000);
  }
}

// Any byte may be any other: refused with the sums as they were, or read as something else.
TEST_P(TopKDamage, test_damaged_bytes_do_no_harm) {
  const auto before = gaussian(5000, 1.0f, 2);
  for (std::size_t at = kAt; at < good_.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xFF}) {
      Bytes bad = good_;
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

INSTANTIATE_TEST_SUITE_P(Codecs, TopKDamage,
                         testing::Values("topk:values=fp32", "topk:values=bf16", "topk", "topk:values=bit2",
                                         "topk:k=500,values=bit2"),
                         case_name);

TEST(TopKCorruption, test_levels_out_of_range_are_refused) {
  const auto values = gaussian(5000);
  const CodecSpec spec = spec_of("topk:values=bit2");
  const Bytes good = compressed(spec, DType::Float32, to_bytes(values));
  const TopKHead head = head_of(good);
  const auto rest = std::span(good).subspan(kAt + sizeof(head));
  const std::size_t at = kAt + sizeof(head) + *coded_plane_bytes(Entropy::Huffman, rest, head.index_bytes);
  for (const std::uint16_t level : {0x7F81, 0x8000, 0xFFFF, 0x7F80}) {
    for (const std::size_t offset : {at, at + 2}) {
      Bytes bad = good;
      std::memcpy(bad.data() + offset, &level, sizeof(level));
      reseal(bad);
      expect_corrupt(bad, 5000);
    }
  }
}

}  // namespace
}  // namespace geocomm::codec
