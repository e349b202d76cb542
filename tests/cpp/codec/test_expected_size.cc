// Sizes that plans count on, against frames of normal numbers.
#include <cmath>
#include <numbers>
#include <random>

#include "codec/payload/expected_size.h"
#include "codec_cases.h"

namespace geocomm::codec {
namespace {

std::vector<float> normal_numbers(std::size_t count) {
  std::mt19937 engine(3);
  const auto uniform = [&] { return (static_cast<double>(engine()) + 0.5) / 4294967296.0; };
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(std::sqrt(-2.0 * std::log(uniform())) *
                               std::cos(2.0 * std::numbers::pi * uniform()));
  }
  return values;
}

TEST(ExpectedSize, of_every_codec_is_within_3_percent_of_a_frame_of_normal_numbers) {
  constexpr std::size_t kElements = 1u << 18;
  const std::vector<float> values = normal_numbers(kElements);
  for (const DType dtype : kFloatTypes) {
    const Bytes elements = to_bytes(values, dtype);
    for (const char* text : {"none",
                             "lossless",
                             "fp16",
                             "bf16",
                             "int8",
                             "int8:block=64",
                             "int8+huffman",
                             "int4",
                             "int4:round=stochastic",
                             "int4+huffman",
                             "bit2",
                             "bit1",
                             "deadzone:step=0.35",
                             "balanced",
                             "deadzone:step=0.85",
                             "small",
                             "deadzone:step=1.4",
                             "deadzone:step=2",
                             "deadzone:step=2.8",
                             "deadzone",
                             "bitplanes:step=0.35",
                             "bitplanes:step=0.85",
                             "bitplanes:step=1.4",
                             "bitplanes:step=2.8",
                             "tiny",
                             "topk:k=41",
                             "topk:k=64,values=fp32",
                             "loco",
                             "loco:k=500"}) {
      const CodecSpec spec = spec_of(text);
      std::vector<float> residual(kElements, 0.0f);
      CompressOptions options;
      if (spec.needs_feedback()) options.feedback = feedback(residual);
      const double measured =
          static_cast<double>(compressed(spec, dtype, elements, options).size()) / kElements;
      const double expected = expected_bytes_per_element(spec, dtype);
      EXPECT_NEAR(expected, measured, 0.03 * measured) << text << " of " << core::to_string(dtype);
    }
  }
}

TEST(ExpectedSize, of_what_a_codec_does_not_take_is_that_of_the_elements) {
  EXPECT_EQ(expected_bytes_per_element(spec_of("int8"), DType::Float64), 8.0);
  EXPECT_EQ(expected_bytes_per_element(spec_of("balanced"), DType::Int32), 4.0);
  EXPECT_EQ(expected_bytes_per_element(spec_of("lossless"), DType::Int64), 8.0);
}

}  // namespace
}  // namespace geocomm::codec
