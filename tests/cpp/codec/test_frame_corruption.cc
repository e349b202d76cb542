// Received frames are hostile: truncated, damaged, or made up with right checksums. Run under ASan and UBSan
// these tests also show that nothing outside the spans is touched.
#include <gtest/gtest.h>

#include "codec/entropy/plane.h"
#include "codec/payload/payload.h"
#include "codec_cases.h"

namespace geocomm::codec {
namespace {

// What a case needs more elements for: planes that are worth a table.
constexpr std::size_t kFew = 150;
constexpr std::size_t kMany = 1500;

class Hostile : public testing::TestWithParam<std::string_view> {
 protected:
  static std::size_t elements() { return spec_of(GetParam()).entropy == Entropy::None ? kFew : kMany; }
  // Whole blocks, one of them raw, and a short one.
  static Bytes sample(DType dtype = DType::Float32) {
    CodecSpec spec = spec_of(GetParam());
    if (spec.has_blocks()) spec.block = 64;
    auto values = gaussian(elements());
    if (!has_stage(spec.entropy)) spec.entropy = Entropy::Huffman;
    if (spec.has_blocks()) values[70] = kNan;
    return compressed(spec, dtype, to_bytes(values, dtype));
  }

  // Decodes by every entry point into memory of just the size that the frame asks for; true if all took it.
  static bool decodes(std::span<const std::byte> bytes) {
    const Bytes frame(bytes.begin(), bytes.end());  // own allocation: ASan sees reads past the end
    const auto view = parse_frame(frame);
    const auto info = inspect_payload(frame);
    if (!view.is_ok()) {
      EXPECT_FALSE(info.is_ok());
      Bytes any(64);
      EXPECT_FALSE(decompress(frame, any).is_ok());
      return false;
    }
    if (view->elements > (1u << 20)) return false;
    Bytes out(view->elements * core::size_of(view->dtype));
    const bool ok = decompress(frame, out).is_ok();
    if (core::is_compressible(view->dtype)) {
      std::vector<float> sum(view->elements, 1.0f);
      const bool added = decompress_accumulate(frame, sum, Accumulate::Add).is_ok();
      EXPECT_EQ(added, ok);
      EXPECT_TRUE(ok || same_bits(sum, std::vector<float>(view->elements, 1.0f)));
    }
    EXPECT_TRUE(!info.is_ok() || decompress_payload(frame, out).is_ok() == ok);
    return ok;
  }
};

TEST_P(Hostile, test_frame_truncated_anywhere_is_corrupt) {
  for (const DType dtype : kFloatTypes) {
    const Bytes frame = sample(dtype);
    ASSERT_TRUE(decodes(frame));
    for (std::size_t size = 0; size < frame.size(); ++size) {
      const auto part = std::span(frame).first(size);
      ASSERT_FALSE(decodes(part)) << size;
      ASSERT_EQ(parse_frame(part).status().code(), StatusCode::CorruptData) << size;
    }
  }
}

// With sizes and checksums that fit the shorter payload: only the content can tell.
TEST_P(Hostile, test_frame_shortened_with_right_checksums_is_corrupt) {
  const Bytes frame = sample();
  for (std::size_t size = sizeof(FrameHeader); size < frame.size(); ++size) {
    Bytes shorter(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(size));
    const std::uint64_t payload_bytes = size - sizeof(FrameHeader);
    std::memcpy(shorter.data() + offsetof(FrameHeader, payload_bytes), &payload_bytes, 8);
    reseal(shorter);
    ASSERT_FALSE(decodes(shorter)) << size;
  }
}

TEST_P(Hostile, test_any_flipped_bit_is_detected) {
  const Bytes frame = sample();
  for (std::size_t bit = 0; bit < 8 * frame.size(); ++bit) {
    Bytes damaged = frame;
    damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    ASSERT_FALSE(decodes(damaged)) << "bit " << bit;
  }
}

TEST_P(Hostile, test_any_header_byte_with_right_checksums_stays_inside) {
  for (const DType dtype : kFloatTypes) {
    const Bytes frame = sample(dtype);
    for (std::size_t at = 0; at < offsetof(FrameHeader, payload_crc); ++at) {
      for (int value = 0; value < 256; ++value) {
        Bytes forged = frame;
        forged[at] = static_cast<std::byte>(value);
        reseal(forged);
        decodes(forged);
      }
    }
  }
}

TEST_P(Hostile, test_any_payload_byte_with_right_checksums_stays_inside) {
  const Bytes frame = sample();
  for (std::size_t at = sizeof(FrameHeader); at < frame.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x7F, 0x80, 0xFF}) {
      Bytes forged = frame;
      forged[at] = static_cast<std::byte>(value);
      reseal(forged);
      decodes(forged);
    }
  }
}

TEST_P(Hostile, test_random_frames_with_right_checksums_stay_inside) {
  const Bytes frame = sample();
  for (std::uint32_t round = 0; round < 3000; ++round) {
    Bytes forged = frame;
    const auto random = core::philox4x32({round, 0, 0, 0}, {77, 0});
    for (std::uint32_t change = 0; change < 1 + random[0] % 6; ++change) {
      const auto bits = core::philox4x32({round, change, 1, 0}, {77, 0});
      forged[4 + bits[0] % (forged.size() - 4)] = static_cast<std::byte>(bits[1]);
    }
    for (std::uint32_t cut = 0; cut < random[1] % 3; ++cut) forged.pop_back();
    reseal(forged);
    decodes(forged);
  }
}

TEST_P(Hostile, test_bytes_after_the_frame_are_left_alone) {
  Bytes frame = sample();
  const std::size_t size = frame.size();
  const auto expected = accumulated(frame, elements());
  frame.resize(size + 100, std::byte{0xEE});
  const auto view = parse_frame(frame);
  ASSERT_TRUE(view.is_ok());
  EXPECT_EQ(frame_bytes(*view), size);
  EXPECT_TRUE(same_bits(accumulated(frame, elements()), expected));
}

INSTANTIATE_TEST_SUITE_P(Codecs, Hostile,
                         testing::Values("none", "fp16", "bf16", "int8", "int4", "bit2", "bit1",
                                         "deadzone+none", "bitplanes+none", "lossless+none", "loco:k=1500"),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Stages, Hostile,
                         testing::Values("bf16+huffman", "int8+huffman", "int4+zstd", "deadzone", "bitplanes",
                                         "deadzone+zstd", "topk:k=600", "topk:k=300,values=bit2",
                                         "topk:k=1800,values=fp32", "topk:k=300,values=bf16+zstd", "lossless",
                                         "lossless+zstd"),
                         case_name);

struct Forgery {
  std::size_t offset;
  std::uint32_t value;
  std::size_t bytes;
  StatusCode expected;
};
class ForgedField : public testing::TestWithParam<Forgery> {};

TEST_P(ForgedField, test_parse_of_impossible_field_names_its_class) {
  const Bytes good = compressed(spec_of("int8"), DType::Float32, to_bytes(gaussian(300)));
  Bytes forged = good;
  std::memcpy(forged.data() + GetParam().offset, &GetParam().value, GetParam().bytes);
  reseal(forged);
  EXPECT_EQ(parse_frame(forged).status().code(), GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, ForgedField,
    testing::Values(Forgery{offsetof(FrameHeader, magic), 0x46434F48, 4, StatusCode::CorruptData},
                    Forgery{offsetof(FrameHeader, version), 2, 1, StatusCode::VersionMismatch},
                    Forgery{offsetof(FrameHeader, version), 0, 1, StatusCode::VersionMismatch},
                    Forgery{offsetof(FrameHeader, codec), kCodecIds, 1, StatusCode::CorruptData},
                    Forgery{offsetof(FrameHeader, codec), 6, 1, StatusCode::CorruptData},  // ternary, once
                    Forgery{offsetof(FrameHeader, dtype), 10, 1, StatusCode::CorruptData},
                    Forgery{offsetof(FrameHeader, dtype), 7, 1, StatusCode::CorruptData},
                    Forgery{offsetof(FrameHeader, flags), 6, 1, StatusCode::CorruptData},
                    Forgery{offsetof(FrameHeader, block), 0, 4, StatusCode::CorruptData},
                    Forgery{offsetof(FrameHeader, block), 100, 4, StatusCode::CorruptData},
                    Forgery{offsetof(FrameHeader, block), 8192, 4, StatusCode::CorruptData},
                    Forgery{offsetof(FrameHeader, elements), 0xFFFFFFFF, 4, StatusCode::CorruptData},
                    Forgery{offsetof(FrameHeader, elements), kMaxFrameElements, 4, StatusCode::CorruptData},
                    Forgery{offsetof(FrameHeader, payload_bytes), 0xFFFFFFFF, 4, StatusCode::CorruptData},
                    Forgery{offsetof(FrameHeader, payload_bytes) + 4, 0xFFFFFFFF, 4,
                            StatusCode::CorruptData}));

// Scales that no encoder writes: zero, subnormal, negative, NaN, and one whose products overflow.
TEST(ForgedScale, test_decode_of_impossible_scale_is_corrupt) {
  for (const auto text : {"int8", "int4"}) {
    const Bytes good = compressed(spec_of(text), DType::Float32, to_bytes(gaussian(300)));
    const std::uint16_t too_large = std::string_view(text) == "int8" ? 0x7C02 : 0x7E13;
    for (const std::uint16_t scale : {std::uint16_t{0}, std::uint16_t{0x007F}, std::uint16_t{0x8080},
                                      std::uint16_t{0x7F81}, std::uint16_t{0xFF80}, too_large}) {
      Bytes forged = good;
      std::memcpy(forged.data() + sizeof(FrameHeader) + 2, &scale, 2);
      reseal(forged);
      Bytes out(1200);
      EXPECT_EQ(decompress(forged, out).code(), StatusCode::CorruptData) << text << std::hex << scale;
    }
    // A block said to be raw, without its elements.
    Bytes forged = good;
    const std::uint16_t raw = 0x7F80;
    std::memcpy(forged.data() + sizeof(FrameHeader), &raw, 2);
    reseal(forged);
    Bytes out(1200);
    EXPECT_EQ(decompress(forged, out).code(), StatusCode::CorruptData);
  }
}

}  // namespace
}  // namespace geocomm::codec
