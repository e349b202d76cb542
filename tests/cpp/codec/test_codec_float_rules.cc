// A caller's float settings (subnormals flushed, another rounding mode) change no bit of frames, residuals
// and decoded values, and are as they were afterwards.
#include <gtest/gtest.h>

#include <optional>

#include "../float_conditions.h"
#include "codec/payload/payload.h"
#include "level_cases.h"

namespace geocomm::codec {
namespace {

constexpr std::size_t kElements = 5000;

const std::string_view kConditionSpecs[] = {"none",
                                            "fp16",
                                            "bf16+huffman",
                                            "lossless",
                                            "int8:block=64",
                                            "int8:round=stochastic",
                                            "int4:block=64",
                                            "bit2:block=64",
                                            "bit1:block=64",
                                            "deadzone:step=0.7",
                                            "bitplanes:step=0.3",
                                            "topk:k=64,values=int8",
                                            "topk:k=64,values=bit2",
                                            "loco"};

// Magnitudes around the least normal one, of every mantissa; every seventh element is larger.
std::vector<float> near_subnormal(std::size_t count, std::uint32_t seed) {
  auto values = gaussian(count, 1.0f, seed);
  for (std::size_t i = 0; i < count; ++i) values[i] *= i % 7 == 0 ? 0x1p-119f : 0x1p-127f;
  return values;
}

struct Made {
  Bytes payload, elements;
  std::vector<float> residual, sum;
};

Made make(const CodecSpec& spec, DType dtype, std::span<const std::byte> src, core::ThreadPool* pool,
          const FloatCondition& condition) {
  const std::size_t elements = src.size() / core::size_of(dtype);
  Made made;
  made.residual = near_subnormal(elements, 3);
  made.sum = near_subnormal(elements, 4);
  made.payload.resize(payload_bound(spec, dtype, elements));
  made.elements.resize(src.size());
  CompressOptions options;
  options.feedback = feedback(made.residual);
  options.feedback.decay = 0.7f;
  const UnderCondition under(condition);
  const auto size = compress_payload(spec, dtype, src, made.payload, options, pool);
  EXPECT_TRUE(size.is_ok()) << size.status().to_string();
  made.payload.resize(size.is_ok() ? *size : 0);
  EXPECT_TRUE(decompress_payload(made.payload, made.elements, pool).is_ok());
  EXPECT_TRUE(accumulate_payload(made.payload, made.sum, pool).is_ok());
  EXPECT_EQ(core::float_control() & ~0x3FULL, condition.control) << "not as the caller had it";
  return made;
}

TEST(CodecFloatRules, test_settings_of_the_caller_change_no_bit) {
  for (const auto text : kConditionSpecs) {
    const CodecSpec spec = spec_of(text);
    for (const DType dtype : kFloatTypes) {
      const Bytes src = to_bytes(near_subnormal(kElements, 1), dtype);
      const Made expected = make(spec, dtype, src, nullptr, float_conditions().front());
      at_every_cpu_level([&] {
        for (const FloatCondition& condition : float_conditions()) {
          SCOPED_TRACE(core::str(text, " of ", core::to_string(dtype), ", ", condition.name));
          const Made made = make(spec, dtype, src, nullptr, condition);
          ASSERT_TRUE(made.payload == expected.payload);
          ASSERT_TRUE(made.elements == expected.elements);
          ASSERT_TRUE(same_bits(made.residual, expected.residual));
          ASSERT_TRUE(same_bits(made.sum, expected.sum));
        }
      });
    }
  }
}

// The threads of a pool are made by a caller, and inherit what he has set.
TEST(CodecFloatRules, test_settings_that_a_pool_inherited_change_no_bit) {
  constexpr std::size_t kFrames = 6;
  const std::size_t elements = kFrames * kPayloadFrameBytes / sizeof(float);
  const Bytes src = to_bytes(near_subnormal(elements, 2));
  for (const auto text : {"int8", "deadzone"}) {
    const CodecSpec spec = spec_of(text);
    const Made expected = make(spec, DType::Float32, src, nullptr, float_conditions().front());
    for (const FloatCondition& condition : float_conditions()) {
      SCOPED_TRACE(core::str(text, ", ", condition.name));
      std::optional<core::ThreadPool> pool;
      {
        const UnderCondition under(condition);
        pool.emplace(3, "inherits");
      }
      const Made made = make(spec, DType::Float32, src, &*pool, float_conditions().front());
      EXPECT_TRUE(made.payload == expected.payload);
      EXPECT_TRUE(same_bits(made.sum, expected.sum));
    }
  }
}

}  // namespace
}  // namespace geocomm::codec
