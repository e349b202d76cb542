#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "codec/spec/codec_spec.h"

namespace geocomm::codec {
namespace {

using core::StatusCode;

CodecSpec parsed(std::string_view text) {
  const auto spec = CodecSpec::parse(text);
  EXPECT_TRUE(spec.is_ok()) << text << ": " << spec.status().to_string();
  return spec.is_ok() ? *spec : CodecSpec{};
}

TEST(CodecSpec, test_parse_of_each_name_gives_its_codec) {
  const auto names = codec_names();
  std::size_t i = 0;
  for (int id = 0; id < kCodecIds; ++id) {
    if (!is_codec(static_cast<std::uint8_t>(id))) continue;
    ASSERT_LT(i, names.size());
    const CodecSpec spec = parsed(names[i]);
    EXPECT_EQ(static_cast<int>(spec.id), id);
    EXPECT_EQ(spec.to_string(), names[i]);
    EXPECT_EQ(spec.is_exact(), names[i] == "none" || names[i] == "lossless");
    EXPECT_EQ(spec.needs_feedback(), names[i] == "topk" || names[i] == "loco");
    ++i;
  }
  EXPECT_EQ(i, names.size());
}

TEST(CodecSpec, test_parts_of_a_spec_are_those_of_its_string) {
  const CodecSpec int4 = parsed("int4:block=128+zstd");
  EXPECT_EQ(int4.family(), "int4");
  EXPECT_EQ(int4.stage(), "zstd");
  EXPECT_EQ(int4.settings(), (std::vector<Setting>{{"block", "128"}, {"round", "nearest"}}));
  EXPECT_EQ(parsed("small").settings(), (std::vector<Setting>{{"block", "4096"}, {"step", "1"}}));
  EXPECT_EQ(parsed("topk").settings(), (std::vector<Setting>{{"k", "64"}, {"values", "int8"}}));
  EXPECT_EQ(parsed("loco").settings(), (std::vector<Setting>{{"k", "64"}}));
  EXPECT_TRUE(parsed("none").settings().empty());
}

TEST(CodecSpec, test_parse_tells_which_settings_the_text_names) {
  const auto given = [](std::string_view text) {
    std::vector<std::string> names;
    EXPECT_TRUE(CodecSpec::parse(text, &names).is_ok()) << text;
    return names;
  };
  EXPECT_EQ(given("int4:round=nearest,block=64"), (std::vector<std::string>{"round", "block"}));
  EXPECT_TRUE(given("int4").empty());
  EXPECT_TRUE(given("balanced").empty());  // it is the preset that names the step
}

TEST(CodecSpec, test_with_setting_changes_one_and_refuses_what_parse_refuses) {
  const CodecSpec int4 = parsed("int4:block=128+huffman");
  EXPECT_EQ(int4.with_setting("round", "stochastic")->to_string(), "int4:block=128,round=stochastic+huffman");
  EXPECT_EQ(*int4.with_setting("block", "256"), parsed("int4+huffman"));
  const auto code_of = [](const CodecSpec& spec, std::string_view key, std::string_view value) {
    return spec.with_setting(key, value).status().code();
  };
  EXPECT_EQ(code_of(int4, "block", "100"), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of(int4, "k", "64"), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of(parsed("none"), "block", "256"), StatusCode::InvalidArgument);
}

TEST(CodecSpec, test_parse_of_a_name_alone_gives_the_documented_defaults) {
  for (const auto& name : codec_names()) {
    const CodecSpec spec = parsed(name);
    const bool packs = name == "deadzone" || name == "bitplanes" || name == "topk" || name == "lossless";
    EXPECT_EQ(spec.entropy, packs ? Entropy::Huffman : Entropy::None) << name;
    EXPECT_EQ(spec.block, name == "deadzone" || name == "bitplanes" ? kMaxBlock : kDefaultBlock) << name;
    EXPECT_EQ(spec.rounding, Rounding::Nearest) << name;
    EXPECT_EQ(spec.step, 0.7f) << name;
    EXPECT_EQ(spec.k, 64u) << name;
    EXPECT_EQ(spec.values, Values::Int8) << name;
  }
}

TEST(CodecSpec, test_parse_of_settings_and_stage_sets_them) {
  const CodecSpec int4 = parsed("int4:round=stochastic,block=128+zstd");
  EXPECT_EQ(int4.id, CodecId::Int4);
  EXPECT_EQ(int4.rounding, Rounding::Stochastic);
  EXPECT_EQ(int4.block, 128u);
  EXPECT_EQ(int4.entropy, Entropy::Zstd);
  EXPECT_EQ(int4.to_string(), "int4:block=128,round=stochastic+zstd");

  const CodecSpec dead_zone = parsed("deadzone:step=1.25,block=1024+none");
  EXPECT_EQ(dead_zone.id, CodecId::DeadZone);
  EXPECT_EQ(dead_zone.step, 1.25f);
  EXPECT_EQ(dead_zone.block, 1024u);
  EXPECT_EQ(dead_zone.entropy, Entropy::None);
  EXPECT_EQ(dead_zone.to_string(), "deadzone:block=1024,step=1.25+none");

  const CodecSpec top_k = parsed("topk:values=bf16,k=41");
  EXPECT_EQ(top_k.id, CodecId::TopK);
  EXPECT_EQ(top_k.values, Values::Bf16);
  EXPECT_EQ(top_k.k, 41u);
  EXPECT_EQ(top_k.to_string(), "topk:k=41,values=bf16");

  const CodecSpec loco = parsed("loco:k=41+none");
  EXPECT_EQ(loco.id, CodecId::Loco);
  EXPECT_EQ(loco.k, 41u);
  EXPECT_EQ(loco.to_string(), "loco:k=41");
}

TEST(CodecSpec, test_parse_takes_the_ends_of_each_range) {
  EXPECT_EQ(parsed("int8:block=64").block, kMinBlock);
  EXPECT_EQ(parsed("int8:block=4096").block, kMaxBlock);
  EXPECT_EQ(parsed("deadzone:step=0.05").step, 0.05f);
  EXPECT_EQ(parsed("deadzone:step=8").step, 8.0f);
  EXPECT_EQ(parsed("topk:k=1").k, 1u);
  EXPECT_EQ(parsed("topk:k=2048").k, 2048u);
}

TEST(CodecSpec, test_to_string_leaves_out_defaults) {
  EXPECT_EQ(parsed("int8:block=256,round=nearest+none").to_string(), "int8");
  EXPECT_EQ(parsed("deadzone:block=4096,step=0.7+huffman").to_string(), "deadzone");
  EXPECT_EQ(parsed("topk:k=64,values=int8+huffman").to_string(), "topk");
  EXPECT_EQ(parsed("lossless+huffman").to_string(), "lossless");
  EXPECT_EQ(parsed("lossless+none").to_string(), "lossless+none");
  EXPECT_EQ(parsed("none+none").to_string(), "none");
}

// Every spec that the grammar can say, but for step and k, of which there are samples.
std::vector<CodecSpec> many_specs() {
  std::vector<CodecSpec> specs;
  const auto add_stages = [&](CodecSpec spec) {
    for (const Entropy stage : {Entropy::None, Entropy::Huffman, Entropy::Zstd}) {
      if (spec.id == CodecId::None && stage != Entropy::None) continue;
      if (spec.id == CodecId::TopK && stage == Entropy::None) continue;
      if (spec.id == CodecId::Loco && stage != Entropy::None) continue;
      spec.entropy = stage;
      specs.push_back(spec);
    }
  };
  for (const auto& name : codec_names()) {
    CodecSpec spec = parsed(name);
    if (spec.id == CodecId::TopK) {
      for (const std::uint32_t k : {1u, 64u, 100u, 2048u}) {
        for (const Values values : {Values::Fp32, Values::Bf16, Values::Int8, Values::Bit2}) {
          spec.k = k;
          spec.values = values;
          add_stages(spec);
        }
      }
      continue;
    }
    if (spec.id == CodecId::Loco) {
      for (const std::uint32_t k : {1u, 64u, 100u, 2048u}) {
        spec.k = k;
        add_stages(spec);
      }
      continue;
    }
    if (!spec.has_blocks()) {
      add_stages(spec);
      continue;
    }
    for (std::uint32_t block = kMinBlock; block <= kMaxBlock; block *= 2) {
      spec.block = block;
      if (spec.has_rounding()) {
        spec.rounding = Rounding::Stochastic;
        add_stages(spec);
        spec.rounding = Rounding::Nearest;
      }
      if (!spec.has_dead_zone()) {
        add_stages(spec);
        continue;
      }
      // One third has no short decimal form: to_string() must still say it exactly.
      for (const float step : {0.05f, 0.7f, 1.0f / 3.0f, 1.4f, 8.0f}) {
        spec.step = step;
        add_stages(spec);
      }
    }
  }
  return specs;
}

TEST(CodecSpec, test_to_string_of_any_spec_parses_back_to_it) {
  for (const CodecSpec& spec : many_specs()) EXPECT_EQ(parsed(spec.to_string()), spec) << spec.to_string();
}

TEST(CodecSpec, test_specs_with_the_same_header_have_the_same_frames) {
  for (const CodecSpec& a : many_specs()) {
    CodecSpec header_only;  // what parse_frame() can tell
    header_only.id = a.id;
    header_only.block = a.block;
    header_only.entropy = a.entropy;
    EXPECT_TRUE(same_frames(a, header_only)) << a.to_string();
  }
  EXPECT_TRUE(same_frames(parsed("deadzone:step=0.7"), parsed("deadzone:step=1.4")));
  EXPECT_TRUE(same_frames(parsed("topk:k=3"), parsed("tiny")));
  EXPECT_FALSE(same_frames(parsed("int8"), parsed("int4")));
  EXPECT_FALSE(same_frames(parsed("int8"), parsed("int8+huffman")));
  EXPECT_FALSE(same_frames(parsed("bit2"), parsed("bit2:block=64")));
  CodecSpec odd = parsed("fp16");
  odd.block = 1;  // means nothing there
  EXPECT_TRUE(same_frames(odd, parsed("fp16")));
}

TEST(CodecSpec, test_preset_stands_for_its_codec) {
  const auto all = presets();
  std::vector<std::string> names;
  for (const Preset& preset : all) {
    names.emplace_back(preset.name);
    EXPECT_EQ(parsed(preset.name), parsed(preset.codec)) << preset.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"lossless", "int8", "int4", "balanced", "small", "tiny"}));
  EXPECT_EQ(parsed("balanced").to_string(), "bitplanes");
  EXPECT_EQ(parsed("small").to_string(), "bitplanes:step=1");
  EXPECT_EQ(parsed("tiny").to_string(), "topk:values=bit2");
  EXPECT_TRUE(parsed("tiny").needs_feedback());
  EXPECT_FALSE(parsed("small").needs_feedback());
}

TEST(CodecSpec, test_preset_with_settings_is_refused_and_names_its_codec) {
  for (const char* text : {"balanced:step=1", "balanced+zstd", "tiny:k=3", "small:"}) {
    const auto spec = CodecSpec::parse(text);
    ASSERT_FALSE(spec.is_ok()) << text;
    EXPECT_EQ(spec.status().code(), StatusCode::InvalidArgument);
    EXPECT_NE(spec.status().message().find("it stands for '"), std::string::npos) << spec.status().message();
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
                         testing::Values("", ":", "+", "int", "INT8", " int8", "int8 ", "int8:", "int8:block",
                                         "int8:block=", "int8:block=0", "int8:block=32", "int8:block=100",
                                         "int8:block=8192", "int8:block=-64", "int8:block=64k",
                                         "int8:block=99999999999999999999", "int8:blok=64", "int8:round=up",
                                         "int8:block=64,", "int8:block=64,block=64", "int8:,block=64",
                                         "fp16:block=64", "none:", std::string("int8\0", 5),
                                         std::string(100000, 'x'), "int8:block=" + std::string(9999, '6')));

INSTANTIATE_TEST_SUITE_P(Stages, BadSpec,
                         testing::Values("int8+", "+huffman", "int8+huff", "int8++huffman",
                                         "int8+huffman+zstd", "int8+huffman:block=64", "int8:+huffman",
                                         "int8:block=64+", "int8+HUFFMAN", "int8+" + std::string(9999, 'z'),
                                         "none+huffman", "none+zstd", "topk+none", "topk:k=5+none",
                                         "loco+huffman", "loco:k=5+zstd"));

INSTANTIATE_TEST_SUITE_P(Settings, BadSpec,
                         testing::Values("bit2:round=stochastic", "bit2:step=1", "bit1:k=3", "int8:step=1",
                                         "deadzone:step=", "deadzone:step=0", "deadzone:step=0.04",
                                         "deadzone:step=8.1", "deadzone:step=-1", "deadzone:step=nan",
                                         "deadzone:step=inf", "deadzone:step=1x", "deadzone:step=1e99",
                                         "deadzone:round=nearest", "deadzone:k=1", "deadzone:scale=tensor",
                                         "topk:block=64", "topk:k=0", "topk:k=2049", "loco:k=0",
                                         "loco:k=2049", "loco:values=bit2", "loco:block=64", "topk:k=-1",
                                         "topk:k=1.5", "topk:k=", "topk:k=3,k=3", "topk:select=chunk",
                                         "topk:values=int4", "topk:values=", "topk:round=nearest",
                                         "lossless:block=64"));

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

INSTANTIATE_TEST_SUITE_P(
    Texts, Misspelled,
    testing::Values(Misspelling{"itn8", "int8"}, Misspelling{"INT4", "int4"}, Misspelling{"float16", "fp16"},
                    Misspelling{"bfp16", "fp16"}, Misspelling{"non", "none"}, Misspelling{"2bit", "bit2"},
                    Misspelling{"bt1", "bit1"}, Misspelling{"dead-zone", "deadzone"},
                    Misspelling{"top-k", "topk"}, Misspelling{"losless", "lossless"},
                    Misspelling{"locco", "loco"}, Misspelling{"balance", "balanced"},
                    Misspelling{"Tiny", "tiny"}, Misspelling{"int8:blcok=64", "block"},
                    Misspelling{"int8:rounding=nearest", "round"},
                    Misspelling{"int8:round=stochastik", "stochastic"}, Misspelling{"int8:block=250", "256"},
                    Misspelling{"int8+hufman", "huffman"}, Misspelling{"int8+zstandard", "zstd"},
                    Misspelling{"topk:value=int8", "values"}, Misspelling{"topk:kk=3", "k"},
                    Misspelling{"topk:values=bfp16", "bf16"}, Misspelling{"deadzone:steps=1", "step"}));

TEST(CodecSpec, test_parse_error_lists_every_codec_and_preset) {
  const std::string message = CodecSpec::parse("gzip").status().message();
  const std::string empty = CodecSpec::parse("").status().message();
  for (const auto& name : codec_names()) {
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_NE(empty.find(name), std::string::npos) << empty;
  }
  for (const Preset& preset : presets()) {
    EXPECT_NE(message.find(preset.name), std::string::npos) << message;
  }
}

TEST(CodecSpec, test_none_with_a_stage_is_told_of_lossless) {
  EXPECT_NE(CodecSpec::parse("none+zstd").status().message().find("'lossless+zstd'"), std::string::npos);
  EXPECT_NE(CodecSpec::parse("none+huffman").status().message().find("'lossless'"), std::string::npos);
}

}  // namespace
}  // namespace geocomm::codec
