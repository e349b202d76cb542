// Lossless: every bit arrives, at every level, and pays.
#include <gtest/gtest.h>

#include <bit>

#include "codec/entropy/plane.h"
#include "codec/frames/bitmap.h"
#include "codec_cases.h"
#include "level_cases.h"

namespace geocomm::codec {
namespace {

const std::string_view kStages[] = {"lossless", "lossless+none"};

// Words of every kind: NaN with payloads, -0, Inf, subnormals.
Bytes any_bits(std::size_t bytes, std::uint32_t seed = 1) {
  Bytes out((bytes + 15) / 16 * 16);
  for (std::size_t i = 0; i < out.size(); i += 16) {
    const auto words = core::philox4x32({static_cast<std::uint32_t>(i), 0, 0, 3}, {seed, 0});
    std::memcpy(out.data() + i, words.data(), 16);
  }
  out.resize(bytes);
  return out;
}

// Floats of which about one in `rarity` keeps its lower half; 0: none.
Bytes mostly_bfloat16(std::size_t count, std::size_t rarity) {
  const auto values = gaussian(count, 0.01f);
  Bytes out = to_bytes(values);
  for (std::size_t i = 0; i < count; ++i) {
    const bool kept =
        rarity != 0 && core::philox4x32({static_cast<std::uint32_t>(i), 0, 0, 9}, {5, 0})[0] % rarity == 0;
    if (!kept) std::memset(out.data() + 4 * i, 0, 2);
  }
  return out;
}

std::uint8_t mode_of(const Bytes& frame) {
  return static_cast<std::uint8_t>(frame[sizeof(FrameHeader)]);
}

TEST(Lossless, test_every_length_is_exact_and_the_same_at_every_level) {
  std::vector<std::size_t> lengths;
  for (std::size_t length = 0; length <= 1000; ++length) lengths.push_back(length);
  for (const std::size_t edge : {4096u, 8192u}) {
    for (const std::size_t length : {edge - 65, edge - 64, edge - 1, edge + 0u, edge + 1, edge + 64}) {
      lengths.push_back(length);
    }
  }
  const Bytes floats[] = {mostly_bfloat16(8300, 0), mostly_bfloat16(8300, 80), mostly_bfloat16(8300, 2),
                          mostly_bfloat16(8300, 1)};
  for (const std::size_t length : lengths) {
    for (const Bytes& all : floats) {
      const auto src = std::span(all).first(4 * length);
      expect_same_at_every_level(spec_of("lossless+none"), DType::Float32, src);
      if (length % 16 == 9 || length > 1000) {
        expect_same_at_every_level(spec_of("lossless"), DType::Float32, src);
      }
      if (HasFatalFailure()) return;
    }
    for (const DType dtype : {DType::Float16, DType::BFloat16}) {
      // Of one exponent, so that short ones shrink as well.
      auto values = gaussian(length, 0.01f);
      for (float& value : values) value += 1.5f;
      expect_same_at_every_level(spec_of("lossless"), dtype, to_bytes(values, dtype));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Lossless, test_round_trip_keeps_every_bit) {
  for (const auto stage : kStages) {
    const CodecSpec spec = spec_of(stage);
    for (const DType dtype : kFloatTypes) {
      for (const std::size_t length : {1u, 7u, 64u, 1000u, 100000u}) {
        const Bytes bits = any_bits(length * core::size_of(dtype));
        EXPECT_EQ(decompressed(compressed(spec, dtype, bits), dtype, length), bits);
        const Bytes usual = to_bytes(gaussian(length, 0.02f), dtype);
        EXPECT_EQ(decompressed(compressed(spec, dtype, usual), dtype, length), usual);
      }
    }
    for (const std::size_t rarity : {0u, 1u, 2u, 17u, 80u, 5000u}) {
      const Bytes src = mostly_bfloat16(50000, rarity);
      EXPECT_EQ(decompressed(compressed(spec, DType::Float32, src), DType::Float32, 50000), src);
    }
  }
}

// Every word of 16 bits, NaN of all payloads among them.
TEST(Lossless, test_every_word_of_16_bits_arrives) {
  Bytes halves(2 << 16);
  Bytes words(4 << 16);
  for (std::uint32_t i = 0; i < (1u << 16); ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    const std::uint32_t word = i << 16;
    std::memcpy(halves.data() + 2 * i, &half, 2);
    std::memcpy(words.data() + 4 * i, &word, 4);
  }
  // Twice the same exponents, so that there is something to gain.
  Bytes padded(halves.size() * 4);
  std::memcpy(padded.data(), halves.data(), halves.size());
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    const Bytes frame = compressed(spec_of("lossless"), dtype, padded);
    EXPECT_EQ(parse_frame(frame)->spec.id, CodecId::Lossless);
    EXPECT_EQ(decompressed(frame, dtype, padded.size() / 2), padded);
  }
  const Bytes frame = compressed(spec_of("lossless"), DType::Float32, words);
  EXPECT_EQ(parse_frame(frame)->spec.id, CodecId::Lossless);
  EXPECT_EQ(mode_of(frame), 0);
  EXPECT_EQ(decompressed(frame, DType::Float32, 1 << 16), words);
}

TEST(Lossless, test_mode_follows_the_share_of_lower_halves_that_are_not_zero) {
  constexpr std::size_t kElements = 1600;
  for (const std::size_t not_zero : {0u, 1u, 100u, 1500u, 1501u, 1600u}) {
    Bytes src = mostly_bfloat16(kElements, 0);
    for (std::size_t i = 0; i < not_zero; ++i) src[4 * i] = std::byte{1};
    const Bytes frame = compressed(spec_of("lossless"), DType::Float32, src);
    ASSERT_EQ(parse_frame(frame)->spec.id, CodecId::Lossless);
    EXPECT_EQ(mode_of(frame), not_zero == 0 ? 0 : not_zero <= 1500 ? 1 : 2) << not_zero;
    EXPECT_EQ(decompressed(frame, DType::Float32, kElements), src);
  }
}

TEST(Lossless, test_payload_of_planes_lies_as_documented) {
  // Without a stage: mode, high bytes, low bytes, bitmap, lower halves.
  const std::uint32_t words[] = {0x3F800000, 0xBF810203, 0x00000000, 0x80000000, 0x7F800001,
                                 0x40490000, 0x40490000, 0x40490000, 0x40490000, 0x40490000};
  Bytes src(sizeof(words));
  std::memcpy(src.data(), words, sizeof(words));
  const Bytes frame = compressed(spec_of("lossless+none"), DType::Float32, src);
  const std::uint8_t expected[] = {1,                                                           //
                                   0x7F, 0x7F, 0x00, 0x00, 0xFF, 0x80, 0x80, 0x80, 0x80, 0x80,  //
                                   0x00, 0x03, 0x00, 0x01, 0x00, 0x92, 0x92, 0x92, 0x92, 0x92,  //
                                   0x12, 0x00,                                                  //
                                   0x02, 0x00,                                                  //
                                   0x03, 0x01};
  ASSERT_EQ(frame.size(), sizeof(FrameHeader) + sizeof(expected));
  EXPECT_EQ(std::memcmp(frame.data() + sizeof(FrameHeader), expected, sizeof(expected)), 0);
}

TEST(Lossless, test_what_does_not_shrink_is_sent_as_it_is) {
  const CodecSpec spec = spec_of("lossless");
  for (const DType dtype : kFloatTypes) {
    for (const std::size_t length : {0u, 1u, 10000u}) {
      const Bytes src = any_bits(length * core::size_of(dtype));
      const Bytes frame = compressed(spec, dtype, src);
      EXPECT_EQ(parse_frame(frame)->spec, CodecSpec{});
      EXPECT_EQ(frame.size(), sizeof(FrameHeader) + src.size());
    }
  }
  const Bytes zeros(8000);
  for (std::uint8_t id = 0; id < core::kDTypeCount; ++id) {
    const auto dtype = static_cast<DType>(id);
    const Bytes frame = compressed(spec, dtype, zeros);
    EXPECT_EQ(parse_frame(frame)->spec, core::is_compressible(dtype) ? spec : CodecSpec{});
    EXPECT_EQ(decompressed(frame, dtype, zeros.size() / core::size_of(dtype)), zeros);
  }
}

TEST(Lossless, test_with_residual_is_the_frame_of_none) {
  for (const DType dtype : kFloatTypes) {
    const Bytes src = to_bytes(std::vector<float>(1000, 0.5f), dtype);
    auto residual = gaussian(1000, 0.01f, 3);
    auto same = residual;
    const Bytes frame = compressed(spec_of("lossless"), dtype, src, {.feedback = feedback(residual)});
    EXPECT_EQ(frame, compressed(CodecSpec{}, dtype, src, {.feedback = feedback(same)}));
    EXPECT_TRUE(same_bits(residual, same));
  }
}

TEST(Lossless, test_accumulation_is_exact) {
  for (const DType dtype : kFloatTypes) {
    const Bytes src = to_bytes(gaussian(9001), dtype);
    const auto values = to_floats(src, dtype);
    const Bytes frame = compressed(spec_of("lossless"), dtype, src);
    ASSERT_EQ(parse_frame(frame)->spec.id, CodecId::Lossless);
    EXPECT_TRUE(same_bits(accumulated(frame, 9001), values));
    const auto start = gaussian(9001, 2.0f, 8);
    auto sum = start;
    ASSERT_TRUE(decompress_accumulate(frame, sum, Accumulate::Add).is_ok());
    for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], start[i] + values[i]);
  }
}

TEST(Lossless, test_ratios_of_gaussian_data) {
  const std::size_t count = std::size_t{1} << 18;
  const auto ratio = [](DType dtype, const Bytes& src) {
    return static_cast<double>(src.size()) /
           static_cast<double>(compressed(spec_of("lossless"), dtype, src).size());
  };
  EXPECT_GT(ratio(DType::Float32, mostly_bfloat16(count, 80)), 2.77);
  EXPECT_GT(ratio(DType::BFloat16, to_bytes(gaussian(count, 0.01f), DType::BFloat16)), 1.45);
  EXPECT_GT(ratio(DType::Float32, to_bytes(gaussian(count, 0.01f))), 1.15);
}

TEST(Lossless, test_bound_holds_and_one_byte_less_is_refused) {
  for (const auto stage : kStages) {
    const CodecSpec spec = spec_of(stage);
    for (const DType dtype : kFloatTypes) {
      for (const std::size_t length : {1u, 64u, 1000u, 300000u}) {
        for (const Bytes& src :
             {any_bits(length * core::size_of(dtype)), to_bytes(gaussian(length), dtype)}) {
          compressed(spec, dtype, src);
          Bytes less(compress_bound(spec, dtype, length) - 1);
          EXPECT_EQ(compress(spec, dtype, src, less).status().code(), StatusCode::OutputTooSmall);
        }
      }
    }
  }
}

TEST(Bitmap, test_bits_are_counted) {
  for (std::size_t bytes = 0; bytes < 70; ++bytes) {
    const Bytes bitmap = any_bits(bytes, 4);
    std::size_t expected = 0;
    for (const std::byte part : bitmap) {
      expected += static_cast<std::size_t>(std::popcount(static_cast<std::uint8_t>(part)));
    }
    EXPECT_EQ(count_bits(bitmap), expected);
  }
  EXPECT_EQ(count_bits(~std::uint64_t{0}), 64u);
}

}  // namespace
}  // namespace geocomm::codec
