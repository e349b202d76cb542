// Frames of released format versions decode forever (tests/golden/frames: NAME.frame and the float32 values
// it decodes to, NAME.values), and what the encoder makes of fixed data, bytes and sizes, does not change
// unseen.
//
// GEOCOMM_WRITE_GOLDEN=1 writes the files anew: only with a new format version, for new data, or for a codec
// that no release has.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "../needs.h"
#include "codec/entropy/plane.h"
#include "codec_cases.h"
#include "core/cpu.h"

namespace geocomm::codec {
namespace {

using core::CpuLevel;

std::filesystem::path golden() {
  return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path() / "golden";
}

bool writing() {
  return std::getenv("GEOCOMM_WRITE_GOLDEN") != nullptr;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Which values a frame is made of.
enum class Kind : std::uint8_t {
  Few,   // 700: ordinary blocks, one of zeros, one raw (where there are blocks), a short one of large values
  Many,  // 9000, for stages: planes that are worth a table, in one stream and in four
  Bf16,  // 9000 that bfloat16 holds
  Mostly,  // 9000 of which bfloat16 holds all but one in fifty
};

struct GoldenCase {
  std::string_view codec;
  Kind kind = Kind::Few;
};

std::vector<float> golden_values(const CodecSpec& spec, Kind kind) {
  auto values = gaussian(kind == Kind::Few ? 700 : 9000, 0.01f);
  if (kind == Kind::Bf16 || kind == Kind::Mostly) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (kind == Kind::Bf16 || i % 50 != 0) {
        values[i] = core::bfloat16_to_float(core::float_to_bfloat16(values[i]));
      }
    }
  }
  std::fill(values.begin() + 256, values.begin() + 320, 0.0f);
  if (spec.has_blocks() || spec.needs_feedback() || spec.id == CodecId::Lossless) {
    const std::size_t odd = kind == Kind::Few ? 330 : 8500;
    values[odd] = kNan;
    values[odd + 10] = -kInf;
  }
  for (std::size_t i = 690; i < 700; ++i) values[i] *= 1e5f;
  return values;
}

class Golden : public testing::TestWithParam<GoldenCase> {
 protected:
  const CodecSpec spec_ = spec_of(GetParam().codec);
  const std::vector<float> input_ = golden_values(spec_, GetParam().kind);
  const std::string name_ = "v1_" + golden_name(GetParam());
  const std::filesystem::path frame_path_ = golden() / "frames" / (name_ + ".frame");
  const std::filesystem::path values_path_ = golden() / "frames" / (name_ + ".values");

 public:
  static std::string golden_name(const GoldenCase& golden_case) {
    std::string name = case_name({golden_case.codec, 0});
    if (golden_case.kind == Kind::Bf16) name += "_of_bf16";
    if (golden_case.kind == Kind::Mostly) name += "_of_mostly_bf16";
    return name;
  }

 protected:
  Bytes encoded() const {
    return compressed(spec_, DType::Float32, to_bytes(input_), {.seed = 11, .first_element = 5});
  }
  void SetUp() override {
    if (!writing()) return;
    write_file(frame_path_, encoded());
    write_file(values_path_, decompressed(encoded(), DType::Float32, input_.size()));
  }
};

TEST_P(Golden, test_committed_frame_decodes_to_the_committed_values) {
  const std::string frame = read_file(frame_path_);
  const std::string expected = read_file(values_path_);
  ASSERT_EQ(expected.size(), 4 * input_.size());
  GEOCOMM_NEEDS(has_stage(spec_.entropy), "zstd in the build (libzstd-dev)");
  for (const CpuLevel level : core::cpu_levels()) {
    ASSERT_TRUE(core::force_cpu_level(level).is_ok());
    Bytes out(expected.size());
    const auto status = decompress(bytes_of(frame), out);
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    EXPECT_TRUE(std::ranges::equal(out, bytes_of(expected))) << core::to_string(level);
  }
  ASSERT_TRUE(core::force_cpu_level(core::detected_cpu_level()).is_ok());
}

TEST_P(Golden, test_encoder_makes_the_committed_bytes_or_what_zstd_makes_of_the_same_values) {
  GEOCOMM_NEEDS(has_stage(spec_.entropy), "zstd in the build (libzstd-dev)");
  if (spec_.entropy != Entropy::Zstd) {
    EXPECT_TRUE(std::ranges::equal(encoded(), bytes_of(read_file(frame_path_))));
    return;
  }
  const Bytes values = decompressed(encoded(), DType::Float32, input_.size());
  EXPECT_TRUE(std::ranges::equal(values, bytes_of(read_file(values_path_))));
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, Golden,
    testing::Values(GoldenCase{"none"}, GoldenCase{"fp16"}, GoldenCase{"bf16"}, GoldenCase{"int8:block=64"},
                    GoldenCase{"int8:block=64,round=stochastic"}, GoldenCase{"int4:block=64"},
                    GoldenCase{"int4:block=64,round=stochastic"}, GoldenCase{"bit2:block=64"},
                    GoldenCase{"bit1:block=64"}, GoldenCase{"deadzone:block=64+none"},
                    GoldenCase{"deadzone:block=64,step=2"}, GoldenCase{"bitplanes:block=64+none"},
                    GoldenCase{"bitplanes:block=64,step=0.3"}, GoldenCase{"topk:k=300,values=fp32"},
                    GoldenCase{"topk:k=300,values=bf16"}, GoldenCase{"topk:k=300", Kind::Many},
                    GoldenCase{"topk:k=300,values=bit2", Kind::Many}, GoldenCase{"topk:k=1800,values=fp32"},
                    GoldenCase{"lossless+none"}, GoldenCase{"fp16+huffman", Kind::Many},
                    GoldenCase{"bf16+huffman", Kind::Many}, GoldenCase{"int8:block=64+huffman", Kind::Many},
                    GoldenCase{"int8:block=64+zstd", Kind::Many},
                    GoldenCase{"int4:block=64+huffman", Kind::Many}, GoldenCase{"deadzone", Kind::Many},
                    GoldenCase{"bitplanes", Kind::Many}, GoldenCase{"deadzone+zstd", Kind::Many},
                    GoldenCase{"bitplanes+zstd", Kind::Many}, GoldenCase{"topk:k=900", Kind::Many},
                    GoldenCase{"topk:k=300+zstd", Kind::Many}, GoldenCase{"lossless", Kind::Many},
                    GoldenCase{"lossless", Kind::Bf16}, GoldenCase{"lossless", Kind::Mostly},
                    GoldenCase{"lossless+zstd", Kind::Mostly}, GoldenCase{"loco:k=301"},
                    GoldenCase{"loco", Kind::Many}),
    [](const testing::TestParamInfo<GoldenCase>& info) { return Golden::golden_name(info.param); });

struct GoldenData {
  const char* name;
  std::vector<float> values;
};

TEST(GoldenSizes, test_sizes_of_fixed_data_are_those_of_the_table) {
  auto with_nan = gaussian(100000);
  with_nan[12345] = kNan;
  auto large = gaussian(100000);
  large[12345] = 1e6f;
  auto bf16 = gaussian(262144);
  for (float& value : bf16) value = core::bfloat16_to_float(core::float_to_bfloat16(value));
  const GoldenData data[] = {{"empty", {}},
                             {"one", {1.0f}},
                             {"gaussian_262144", gaussian(262144)},
                             {"gaussian_1001", gaussian(1001)},
                             {"gaussian_as_bf16_262144", std::move(bf16)},
                             {"zeros_4096", std::vector<float>(4096, 0.0f)},
                             {"one_nan_100000", std::move(with_nan)},
                             {"one_large_100000", std::move(large)}};
  std::ostringstream table;
  table << "data,dtype,codec,raw_bytes,frame_bytes\n";
  for (const auto& [name, values] : data) {
    for (const DType dtype : {DType::Float32, DType::BFloat16}) {
      const Bytes src = to_bytes(values, dtype);
      for (const std::string_view codec : {"none",
                                           "fp16",
                                           "bf16",
                                           "bf16+huffman",
                                           "int8",
                                           "int8:block=64",
                                           "int8+huffman",
                                           "int4",
                                           "int4:block=4096",
                                           "int4+huffman",
                                           "bit2",
                                           "bit1",
                                           "deadzone",
                                           "deadzone:step=1.4",
                                           "deadzone:step=1.4+none",
                                           "bitplanes",
                                           "bitplanes:step=1",
                                           "bitplanes:step=1.4+none",
                                           "topk",
                                           "topk:values=bit2",
                                           "lossless",
                                           "lossless+none",
                                           "loco"}) {
        table << name << ',' << core::to_string(dtype) << ',' << codec << ',' << src.size() << ','
              << compressed(spec_of(codec), dtype, src).size() << '\n';
      }
    }
  }
  const auto path = golden() / "sizes.csv";
  if (writing()) write_file(path, bytes_of(table.str()));
  EXPECT_EQ(table.str(), read_file(path));
}

}  // namespace
}  // namespace geocomm::codec
