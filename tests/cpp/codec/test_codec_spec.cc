#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "codec/codec_spec.h"

namespace geocomm::codec {
namespace {

using core::StatusCode;

TEST(CodecSpec, test_parse_of_each_name_gives_its_codec) {
  const auto names = codec_names();
  ASSERT_EQ(names.size(), 5u);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto spec = CodecSpec::parse(names[i]);
    ASSERT_TRUE(spec.is_ok()) << names[i];
    EXPECT_EQ(static_cast<std::size_t>(spec->id), i);
    EXPECT_EQ(spec->to_string(), names[i]);
    EXPECT_EQ(spec->is_exact(), names[i] == "none");
  }
}

TEST(CodecSpec, test_parse_of_settings_sets_them) {
  const auto spec = CodecSpec::parse("int4:round=stochastic,block=128");
  ASSERT_TRUE(spec.is_ok());
  EXPECT_EQ(spec->id, CodecId::Int4);
  EXPECT_EQ(spec->rounding, Rounding::Stochastic);
  EXPECT_EQ(spec->block, 128u);
  EXPECT_EQ(spec->to_string(), "int4:block=128,round=stochastic");
}

TEST(CodecSpec, test_to_string_leaves_out_defaults_and_parses_back) {
  EXPECT_EQ(CodecSpec::parse("int8:block=256,round=nearest")->to_string(), "int8");
  for (const char* name : {"int8", "int4"}) {
    for (std::uint32_t block = kMinBlock; block <= kMaxBlock; block *= 2) {
      for (const Rounding rounding : {Rounding::Nearest, Rounding::Stochastic}) {
        CodecSpec spec = *CodecSpec::parse(name);
        spec.block = block;
        spec.rounding = rounding;
        const auto back = CodecSpec::parse(spec.to_string());
        ASSERT_TRUE(back.is_ok()) << spec.to_string();
        EXPECT_EQ(*back, spec);
      }
    }
  }
}

class BadSpec : public testing::TestWithParam<std::string> {};

TEST_P(BadSpec, test_parse_of_bad_text_is_invalid_argument) {
  const auto spec = CodecSpec::parse(GetParam());
  ASSERT_FALSE(spec.is_ok());
  EXPECT_EQ(spec.status().code(), StatusCode::InvalidArgument);
  EXPECT_LT(spec.status().message().size(), 500u);
}

INSTANTIATE_TEST_SUITE_P(Texts, BadSpec,
                         testing::Values("", ":", "int", "INT8", " int8", "int8 ", "int8:", "int8:block",
                                         "int8:block=", "int8:block=0", "int8:block=32", "int8:block=100",
                                         "int8:block=8192", "int8:block=-64", "int8:block=64k",
                                         "int8:block=99999999999999999999", "int8:blok=64", "int8:round=up",
                                         "int8:block=64,", "int8:block=64,block=64", "int8:,block=64",
                                         "fp16:block=64", "none:", "int8+huffman", std::string("int8\0", 5),
                                         std::string(100000, 'x'), "int8:block=" + std::string(9999, '6')));

struct Misspelling {
  const char* text;
  const char* nearest;
};
class Misspelled : public testing::TestWithParam<Misspelling> {};

TEST_P(Misspelled, test_parse_names_the_nearest_spelling_and_the_choices) {
  const auto spec = CodecSpec::parse(GetParam().text);
  ASSERT_FALSE(spec.is_ok());
  const std::string& message = spec.status().message();
  EXPECT_NE(message.find(std::string("did you mean '") + GetParam().nearest + "'"), std::string::npos)
      << message;
}

INSTANTIATE_TEST_SUITE_P(Texts, Misspelled,
                         testing::Values(Misspelling{"itn8", "int8"}, Misspelling{"INT4", "int4"},
                                         Misspelling{"float16", "fp16"}, Misspelling{"bfp16", "fp16"},
                                         Misspelling{"non", "none"}, Misspelling{"int8:blcok=64", "block"},
                                         Misspelling{"int8:rounding=nearest", "round"},
                                         Misspelling{"int8:round=stochastik", "stochastic"},
                                         Misspelling{"int8:block=250", "256"}));

TEST(CodecSpec, test_parse_error_lists_every_codec) {
  const std::string message = CodecSpec::parse("gzip").status().message();
  const std::string empty = CodecSpec::parse("").status().message();
  for (const auto& name : codec_names()) {
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_NE(empty.find(name), std::string::npos) << empty;
  }
}

}  // namespace
}  // namespace geocomm::codec
