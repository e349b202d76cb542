// Frames of released format versions decode forever (tests/golden/frames: NAME.frame and the float32 values
// it decodes to, NAME.values), and what the encoder makes of fixed data, bytes and sizes, does not change
// unseen.
//
// GEOCOMM_WRITE_GOLDEN=1 writes the files anew: only with a new format version, or for new data.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "codec_cases.h"

namespace geocomm::codec {
namespace {

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

// Ordinary blocks, a block of zeros, a raw block (in the block codecs), a short block of large values.
std::vector<float> golden_values(const CodecSpec& spec) {
  auto values = gaussian(700, 0.01f);
  std::fill(values.begin() + 256, values.begin() + 320, 0.0f);
  if (spec.has_blocks()) {
    values[330] = kNan;
    values[340] = -kInf;
  }
  for (std::size_t i = 690; i < 700; ++i) values[i] *= 1e5f;
  return values;
}

class Golden : public testing::TestWithParam<std::string_view> {
 protected:
  const CodecSpec spec_ = spec_of(GetParam());
  const std::string name_ = "v1_" + case_name({GetParam(), 0});
  const std::filesystem::path frame_path_ = golden() / "frames" / (name_ + ".frame");
  const std::filesystem::path values_path_ = golden() / "frames" / (name_ + ".values");

  Bytes encoded() const {
    return compressed(spec_, DType::Float32, to_bytes(golden_values(spec_)),
                      {.seed = 11, .first_element = 5});
  }
  void SetUp() override {
    if (!writing()) return;
    write_file(frame_path_, encoded());
    write_file(values_path_, decompressed(encoded(), DType::Float32, 700));
  }
};

TEST_P(Golden, test_committed_frame_decodes_to_the_committed_values) {
  const std::string frame = read_file(frame_path_);
  const std::string expected = read_file(values_path_);
  ASSERT_EQ(expected.size(), 2800u);
  Bytes out(expected.size());
  const auto status = decompress(bytes_of(frame), out);
  ASSERT_TRUE(status.is_ok()) << status.to_string();
  EXPECT_TRUE(std::ranges::equal(out, bytes_of(expected)));
}

TEST_P(Golden, test_encoder_makes_the_committed_bytes) {
  EXPECT_TRUE(std::ranges::equal(encoded(), bytes_of(read_file(frame_path_))));
}

INSTANTIATE_TEST_SUITE_P(Codecs, Golden,
                         testing::Values("none", "fp16", "bf16", "int8:block=64",
                                         "int8:block=64,round=stochastic", "int4:block=64",
                                         "int4:block=64,round=stochastic"),
                         case_name);

struct Data {
  const char* name;
  std::vector<float> values;
};

TEST(GoldenSizes, test_sizes_of_fixed_data_are_those_of_the_table) {
  auto with_nan = gaussian(100000);
  with_nan[12345] = kNan;
  auto large = gaussian(100000);
  large[12345] = 1e6f;
  const Data data[] = {{"empty", {}},
                       {"one", {1.0f}},
                       {"gaussian_262144", gaussian(262144)},
                       {"gaussian_1001", gaussian(1001)},
                       {"zeros_4096", std::vector<float>(4096, 0.0f)},
                       {"one_nan_100000", std::move(with_nan)},
                       {"one_large_100000", std::move(large)}};
  std::ostringstream table;
  table << "data,dtype,codec,raw_bytes,frame_bytes\n";
  for (const auto& [name, values] : data) {
    for (const DType dtype : {DType::Float32, DType::BFloat16}) {
      const Bytes src = to_bytes(values, dtype);
      for (const std::string_view codec :
           {"none", "fp16", "bf16", "int8", "int8:block=64", "int4", "int4:block=4096"}) {
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
