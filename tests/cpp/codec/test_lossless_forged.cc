// Lossless frames that no encoder wrote, with checksums that are right.
#include <gtest/gtest.h>

#include "codec_cases.h"
#include "forged_frames.h"

namespace geocomm::codec {
namespace {

constexpr std::size_t kWordElements = 203;
constexpr std::size_t kWordBitmapAt = sizeof(FrameHeader) + 1 + 2 * kWordElements;

// Every third lower half is not zero.
Bytes sparse_floats() {
  Bytes src = to_bytes(gaussian(kWordElements));
  for (std::size_t i = 0; i < kWordElements; ++i) {
    if (i % 3 != 0) std::memset(src.data() + 4 * i, 0, 2);
  }
  return src;
}

TEST(ForgedLossless, test_other_mode_is_corrupt) {
  const Bytes good = compressed(spec_of("lossless+none"), DType::Float32, sparse_floats());
  ASSERT_EQ(good[sizeof(FrameHeader)], std::byte{1});
  for (const int mode : {0, 2, 3, 255}) {
    Bytes frame = good;
    frame[sizeof(FrameHeader)] = static_cast<std::byte>(mode);
    expect_forgery_refused(frame, kWordElements);
  }
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    for (const int mode : {1, 2, 255}) {
      Bytes frame =
          compressed(spec_of("lossless"), dtype, to_bytes(std::vector<float>(kWordElements, 0.5f), dtype));
      ASSERT_EQ(parse_frame(frame)->spec.id, CodecId::Lossless);
      frame[sizeof(FrameHeader)] = static_cast<std::byte>(mode);
      expect_forgery_refused(frame, kWordElements, dtype);
    }
  }
}

TEST(ForgedLossless, test_any_other_bitmap_is_corrupt_where_the_count_differs) {
  const Bytes good = compressed(spec_of("lossless+none"), DType::Float32, sparse_floats());
  for (std::size_t i = 0; i < kWordElements; ++i) {
    Bytes frame = good;
    frame[kWordBitmapAt + i / 8] ^= static_cast<std::byte>(1 << i % 8);
    expect_forgery_refused(frame, kWordElements);
  }
}

TEST(ForgedLossless, test_bit_beyond_the_elements_is_corrupt) {
  Bytes frame = compressed(spec_of("lossless+none"), DType::Float32, sparse_floats());
  frame[kWordBitmapAt] ^= std::byte{1};
  frame[kWordBitmapAt + kWordElements / 8] |= std::byte{0x80};
  expect_forgery_refused(frame, kWordElements);
}

TEST(ForgedLossless, test_truncated_or_longer_payload_is_corrupt) {
  for (const char* text : {"lossless+none", "lossless"}) {
    const Bytes good = compressed(spec_of(text), DType::Float32, sparse_floats());
    ASSERT_EQ(parse_frame(good)->spec.id, CodecId::Lossless);
    for (std::size_t size = sizeof(FrameHeader); size < good.size(); ++size) {
      Bytes frame(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
      set_payload_bytes(frame);
      expect_forgery_refused(frame, kWordElements);
    }
    Bytes longer = good;
    longer.push_back(std::byte{0});
    set_payload_bytes(longer);
    expect_forgery_refused(longer, kWordElements);
  }
}

// A zero half whose bit is set, and a bitmap of no bits, are odd but whole.
TEST(ForgedLossless, test_odd_but_whole_frames_decode) {
  Bytes frame = compressed(spec_of("lossless+none"), DType::Float32, sparse_floats());
  const std::size_t halves = frame.size() - (kWordBitmapAt + 26);
  std::memset(frame.data() + kWordBitmapAt + 26, 0, halves);
  reseal(frame);
  Bytes empty = frame;
  empty.resize(kWordBitmapAt);
  empty.resize(kWordBitmapAt + 26);  // zeros
  set_payload_bytes(empty);
  reseal(empty);
  Bytes expected = sparse_floats();
  for (std::size_t i = 0; i < kWordElements; ++i) std::memset(expected.data() + 4 * i, 0, 2);
  at_every_cpu_level([&] {
    EXPECT_EQ(decompressed(frame, DType::Float32, kWordElements), expected);
    EXPECT_EQ(decompressed(empty, DType::Float32, kWordElements), expected);
  });
}

}  // namespace
}  // namespace geocomm::codec
