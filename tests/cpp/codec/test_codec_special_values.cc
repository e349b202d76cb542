// NaN, Inf, zeros, subnormals and values at the end of the range.
#include <gtest/gtest.h>

#include "codec_cases.h"

namespace geocomm::codec {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kDenorm = std::numeric_limits<float>::denorm_min();

const std::string_view kIntegerSpecs[] = {"int8:block=64", "int4:block=64", "int8:block=64,round=stochastic",
                                          "int4:block=64,round=stochastic", "int8:block=64+huffman"};
const std::string_view kBlockSpecs[] = {"int8:block=64",
                                        "int4:block=64",
                                        "int8:block=64,round=stochastic",
                                        "int4:block=64,round=stochastic",
                                        "int8:block=64+huffman",
                                        "bit2:block=64",
                                        "bit1:block=64"};

TEST(SpecialValues, test_block_with_nan_or_inf_arrives_bit_for_bit) {
  for (const auto text : kBlockSpecs) {
    for (const DType dtype : kFloatTypes) {
      for (const float special : {kNan, -kNan, kInf, -kInf, std::bit_cast<float>(0x7FC12345u)}) {
        auto values = gaussian(64 * 3 + 10);
        values[64 + 17] = special;
        const Bytes src = to_bytes(values, dtype);
        const Bytes out = decompressed(compressed(spec_of(text), dtype, src), dtype, values.size());
        const std::size_t block = 64 * core::size_of(dtype);
        ASSERT_EQ(std::memcmp(out.data() + block, src.data() + block, block), 0) << text;
      }
    }
  }
}

TEST(SpecialValues, test_nan_does_not_harm_other_blocks) {
  for (const auto text : kBlockSpecs) {
    const auto clean = gaussian(64 * 4);
    const auto expected =
        accumulated(compressed(spec_of(text), DType::Float32, to_bytes(clean)), clean.size());
    auto dirty = clean;
    dirty[70] = kNan;
    dirty[64 * 3 + 63] = kInf;
    const auto decoded =
        accumulated(compressed(spec_of(text), DType::Float32, to_bytes(dirty)), dirty.size());
    for (std::size_t i = 0; i < clean.size(); ++i) {
      const bool raw = i / 64 == 1 || i / 64 == 3;
      if (std::isnan(dirty[i])) {
        ASSERT_TRUE(std::isnan(decoded[i]));
      } else {
        ASSERT_EQ(decoded[i], raw ? dirty[i] : expected[i]) << text << ' ' << i;
      }
    }
  }
}

TEST(SpecialValues, test_casts_keep_nan_and_inf_among_finite_values) {
  for (const auto text : {"fp16", "bf16"}) {
    for (const DType dtype : kFloatTypes) {
      const std::vector<float> values = {1.0f, kNan, kInf, -kInf, -2.0f, 0.0f, -0.0f};
      const Bytes frame = compressed(spec_of(text), dtype, to_bytes(values, dtype));
      EXPECT_EQ(frame.size(), sizeof(FrameHeader) + 2 * values.size());
      const auto decoded = to_floats(decompressed(frame, dtype, values.size()), dtype);
      EXPECT_TRUE(std::isnan(decoded[1]));
      for (const std::size_t i : {0u, 2u, 3u, 4u}) EXPECT_EQ(decoded[i], values[i]);
      EXPECT_TRUE(std::signbit(decoded[6]));
    }
  }
}

// Fp16 and Bf16 resort to a frame of None where a value does not fit.
TEST(SpecialValues, test_cast_of_value_beyond_the_range_is_sent_exactly) {
  struct Case {
    const char* codec;
    DType dtype;
    float fits;
    float too_large;
  };
  const float bf16_edge = std::bit_cast<float>(0x7F7F8000u);
  for (const Case& test :
       {Case{"fp16", DType::Float32, std::nextafter(65520.0f, 0.0f), 65520.0f},
        Case{"fp16", DType::Float32, -65504.0f, -kMax}, Case{"fp16", DType::BFloat16, 65280.0f, 65536.0f},
        Case{"bf16", DType::Float32, std::nextafter(bf16_edge, 0.0f), bf16_edge}}) {
    const auto spec = spec_of(test.codec);
    auto values = gaussian(100);
    values[50] = test.fits;
    EXPECT_EQ(parse_frame(compressed(spec, test.dtype, to_bytes(values, test.dtype)))->spec, spec);
    values[50] = test.too_large;
    const Bytes src = to_bytes(values, test.dtype);
    const Bytes frame = compressed(spec, test.dtype, src);
    EXPECT_EQ(parse_frame(frame)->spec, CodecSpec{});
    EXPECT_EQ(decompressed(frame, test.dtype, values.size()), src);
  }
}

TEST(SpecialValues, test_finite_values_never_arrive_as_inf) {
  for (const auto text : kAllSpecs) {
    for (const DType dtype : kFloatTypes) {
      const float largest = dtype == DType::Float32   ? kMax
                            : dtype == DType::Float16 ? 65504.0f
                                                      : core::bfloat16_to_float(0x7F7F);
      for (const float factor : {1.0f, 0.999f, 0.75f, 0.5f}) {
        auto values = gaussian(300, largest / 100 * factor);
        values[3] = largest * factor;
        values[200] = -largest * factor;
        const Bytes frame = compressed(spec_of(text), dtype, to_bytes(values, dtype));
        for (const float value : accumulated(frame, values.size())) ASSERT_TRUE(std::isfinite(value)) << text;
        for (const float value : to_floats(decompressed(frame, dtype, values.size()), dtype)) {
          ASSERT_TRUE(std::isfinite(value)) << text;
        }
      }
    }
  }
}

TEST(SpecialValues, test_float_max_keeps_the_relative_error_of_its_codec) {
  for (const auto text : kIntegerSpecs) {
    const auto spec = spec_of(text);
    std::vector<float> values(64, 0.0f);
    values[0] = kMax;
    values[1] = -kMax;
    const auto decoded = accumulated(compressed(spec, DType::Float32, to_bytes(values)), values.size());
    const double levels = spec.id == CodecId::Int8 ? 127 : 7;
    EXPECT_NEAR(decoded[0] / double{kMax}, 1.0, 1 / levels);
    EXPECT_EQ(decoded[1], -decoded[0]);
    EXPECT_EQ(decoded[2], 0.0f);
  }
}

// Two levels or four have none at zero: there zeros get the least scale.
TEST(SpecialValues, test_zeros_stay_zero) {
  for (const auto text : kAllSpecs) {
    const std::vector<float> values(500, 0.0f);
    const auto spec = spec_of(text);
    const auto decoded = accumulated(compressed(spec, DType::Float32, to_bytes(values)), 500);
    if (spec.id == CodecId::Bit2 || spec.id == CodecId::Bit1) {
      for (const float value : decoded) ASSERT_LE(std::abs(value), std::ldexp(1.0f, -126)) << text;
    } else {
      EXPECT_TRUE(same_bits(decoded, values)) << text;
    }
  }
  for (const auto text : kIntegerSpecs) {
    const std::vector<float> negative(500, -0.0f);
    const auto frame = compressed(spec_of(text), DType::Float32, to_bytes(negative));
    EXPECT_TRUE(same_bits(accumulated(frame, 500), std::vector<float>(500, 0.0f)));
  }
}

TEST(SpecialValues, test_subnormal_blocks_decode_within_the_least_scale) {
  const float least_scale = std::ldexp(1.0f, -126);
  for (const auto text : kIntegerSpecs) {
    std::vector<float> values(128, kDenorm);
    values[5] = -std::ldexp(1.0f, -127);
    values[64] = std::ldexp(1.0f, -124);
    values[65] = -std::ldexp(1.5f, -125);
    const auto decoded =
        accumulated(compressed(spec_of(text), DType::Float32, to_bytes(values)), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_LE(std::abs(decoded[i] - values[i]), least_scale) << text << ' ' << i;
    }
  }
}

// Sums of squares neither overflow nor vanish: the scale follows the values over all of float's range.
TEST(SpecialValues, test_moments_scale_with_the_values) {
  const auto values = gaussian(1024, 1.0f);
  for (const auto text : {"bit2:block=128", "bit1:block=128"}) {
    const auto expected = accumulated(compressed(spec_of(text), DType::Float32, to_bytes(values)), 1024);
    for (const int exponent : {-120, -60, 60, 124}) {
      auto scaled = values;
      for (float& value : scaled) value = std::ldexp(value, exponent);
      const auto decoded = accumulated(compressed(spec_of(text), DType::Float32, to_bytes(scaled)), 1024);
      for (std::size_t i = 0; i < 1024; ++i) ASSERT_EQ(decoded[i], std::ldexp(expected[i], exponent)) << text;
    }
    const std::vector<float> largest(128, kMax);
    for (const float value : accumulated(compressed(spec_of(text), DType::Float32, to_bytes(largest)), 128)) {
      ASSERT_TRUE(value > kMax / 4 && value <= kMax) << text << ' ' << value;
    }
  }
}

TEST(SpecialValues, test_wide_range_in_one_block_keeps_the_large_ones) {
  auto values = gaussian(64, 1e-30f);
  values[9] = 1e30f;
  const auto decoded =
      accumulated(compressed(spec_of("int8:block=64"), DType::Float32, to_bytes(values)), 64);
  EXPECT_NEAR(decoded[9] / 1e30, 1.0, 1.0 / 254);
  EXPECT_EQ(decoded[8], 0.0f);
}

}  // namespace
}  // namespace geocomm::codec
