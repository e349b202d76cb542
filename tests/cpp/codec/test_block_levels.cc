// The block codecs and casts at every CPU level: the bytes, residuals and values of the scalar level.
#include <gtest/gtest.h>

#include "codec_cases.h"
#include "core/cpu.h"

namespace geocomm::codec {
namespace {

using core::CpuLevel;

constexpr std::string_view kLevelSpecs[] = {"none",
                                            "fp16",
                                            "bf16",
                                            "fp16+huffman",
                                            "bf16+huffman",
                                            "int8:block=64",
                                            "int8:block=128,round=stochastic",
                                            "int8+huffman",
                                            "int4",
                                            "int4:block=64,round=stochastic",
                                            "int4:block=128+huffman",
                                            "bit2",
                                            "bit2:block=64",
                                            "bit2:block=512+huffman",
                                            "bit1",
                                            "bit1:block=64+huffman",
                                            "bit1:block=4096"};

std::vector<CpuLevel> fast_levels() {
  return {core::cpu_levels().begin() + 1, core::cpu_levels().end()};
}

class LevelGuard {
 public:
  ~LevelGuard() { EXPECT_TRUE(core::force_cpu_level(core::detected_cpu_level()).is_ok()); }
};

// Runs of 64 elements of different kinds: ordinary, any finite, zeros, subnormal, huge, any bits at all,
// ties.
Bytes mixed_elements(DType dtype, std::size_t count, std::uint32_t seed) {
  const auto ordinary = gaussian(count, 0.01f, seed);
  Bytes bytes(count * core::size_of(dtype));
  const std::uint32_t exponent = dtype == DType::Float32   ? 0x7F800000u
                                 : dtype == DType::Float16 ? 0x7C00u
                                                           : 0x7F80u;
  const std::uint32_t sign = dtype == DType::Float32 ? 0x80000000u : 0x8000u;
  const std::uint32_t lowest_exponent = exponent & (~exponent + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const auto words = core::philox4x32({static_cast<std::uint32_t>(i), 1, 0, 9}, {seed, 0});
    const auto kinds = core::philox4x32({static_cast<std::uint32_t>(i / 64), 2, 0, 9}, {seed, 0});
    std::uint32_t word = words[0];
    switch (kinds[0] % 8) {
      case 0:
        word &= ~lowest_exponent;
        break;
      case 1:
        word &= sign;
        break;
      case 2:
        word &= ~exponent;
        break;
      case 3:
        word = (word | exponent) & ~lowest_exponent;
        break;
      case 4:
        break;
      case 5: {
        const float tie = static_cast<float>(static_cast<int>(word % 511) - 255) * 0.5f;
        const Bytes one = to_bytes(std::span(&tie, 1), dtype);
        std::memcpy(&word, one.data(), one.size());
        break;
      }
      default: {
        const Bytes one = to_bytes(std::span(&ordinary[i], 1), dtype);
        std::memcpy(&word, one.data(), one.size());
      }
    }
    std::memcpy(bytes.data() + i * core::size_of(dtype), &word, core::size_of(dtype));
  }
  return bytes;
}

struct Outcome {
  Bytes frame;
  Bytes residual;
  Bytes out;
  std::vector<float> assigned;
  std::vector<float> added;

  bool operator==(const Outcome& other) const {
    return frame == other.frame && residual == other.residual && out == other.out &&
           same_bits(assigned, other.assigned) && same_bits(added, other.added);
  }
};

struct Case {
  CodecSpec spec;
  DType dtype = DType::Float32;
  std::size_t length = 0;
  int residual = 0;        // 0: none; 1: float32; 2: bfloat16
  std::size_t offset = 0;  // of all buffers
  float decay = 1.0f;

  DType residual_dtype() const { return residual == 1 ? DType::Float32 : DType::BFloat16; }
};

// A NaN that is added to another NaN has the payload of either, so the residual is NaN where the input is
// not.
Bytes residual_of(const Case& test, const Bytes& src) {
  if (test.residual == 0) return {};
  Bytes bytes = mixed_elements(test.residual_dtype(), test.length, 77);
  auto values = to_floats(bytes, test.residual_dtype());
  const auto inputs = to_floats(src, test.dtype);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(inputs[i])) values[i] = 0.0f;
  }
  return to_bytes(values, test.residual_dtype());
}

Outcome outcome_of(const Case& test, const Bytes& src, const Bytes& residual) {
  const auto moved = [&](const Bytes& bytes) {
    Bytes copy(test.offset + bytes.size());
    if (!bytes.empty()) std::memcpy(copy.data() + test.offset, bytes.data(), bytes.size());
    return copy;
  };
  Outcome outcome;
  Bytes moved_src = moved(src);
  Bytes moved_residual = moved(residual);
  Bytes dst(test.offset + compress_bound(test.spec, test.dtype, test.length));
  CompressOptions options{.seed = 5, .first_element = 3 + test.length};
  if (test.residual != 0 && test.length > 0) {
    options.feedback = {moved_residual.data() + test.offset, test.residual_dtype(), test.length, test.decay};
  }
  const auto size = compress(test.spec, test.dtype, std::span(moved_src).subspan(test.offset),
                             std::span(dst).subspan(test.offset), options);
  EXPECT_TRUE(size.is_ok()) << size.status().to_string();
  const auto frame = std::span(dst).subspan(test.offset).first(*size);
  outcome.frame.assign(frame.begin(), frame.end());
  outcome.residual.assign(moved_residual.begin() + static_cast<std::ptrdiff_t>(test.offset),
                          moved_residual.end());
  Bytes out(test.offset + src.size());
  EXPECT_TRUE(decompress(frame, std::span(out).subspan(test.offset)).is_ok());
  outcome.out.assign(out.begin() + static_cast<std::ptrdiff_t>(test.offset), out.end());
  outcome.assigned = accumulated(frame, test.length);
  outcome.added = gaussian(test.length, 3.0f, 4);
  EXPECT_TRUE(decompress_accumulate(frame, outcome.added, Accumulate::Add).is_ok());
  return outcome;
}

class Levels : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    if (fast_levels().empty()) GTEST_SKIP() << "this machine has the scalar level alone";
  }

  void expect_equal(const Case& test) {
    const Bytes src = mixed_elements(test.dtype, test.length, static_cast<std::uint32_t>(test.length));
    const Bytes residual = residual_of(test, src);
    ASSERT_TRUE(core::force_cpu_level(CpuLevel::Scalar).is_ok());
    const Outcome expected = outcome_of(test, src, residual);
    for (const CpuLevel level : fast_levels()) {
      ASSERT_TRUE(core::force_cpu_level(level).is_ok());
      const Outcome actual = outcome_of(test, src, residual);
      ASSERT_TRUE(actual.frame == expected.frame && actual.residual == expected.residual &&
                  actual.out == expected.out && same_bits(actual.assigned, expected.assigned) &&
                  same_bits(actual.added, expected.added))
          << core::to_string(level) << ' ' << test.spec.to_string() << ' ' << core::to_string(test.dtype)
          << " length " << test.length << " residual " << test.residual << " offset " << test.offset
          << "; equal: frame " << (actual.frame == expected.frame) << " residual "
          << (actual.residual == expected.residual) << " out " << (actual.out == expected.out) << " assigned "
          << same_bits(actual.assigned, expected.assigned) << " added "
          << same_bits(actual.added, expected.added);
    }
  }

  const CodecSpec spec_ = spec_of(GetParam());
  LevelGuard guard_;
};

TEST_P(Levels, test_every_length_equals_scalar) {
  for (std::size_t length = 0; length <= 1000; ++length) {
    expect_equal({.spec = spec_,
                  .dtype = kFloatTypes[length % 3],
                  .length = length,
                  .residual = static_cast<int>(length / 3 % 3),
                  .offset = length * 7 % 64,
                  .decay = length % 2 == 0 ? 1.0f : 0.9f});
  }
}

TEST_P(Levels, test_every_dtype_and_residual_around_block_edges_equals_scalar) {
  for (const std::size_t length : {64u, 320u, 4095u, 4096u, 4097u, 8192u + 192u}) {
    for (const DType dtype : kFloatTypes) {
      for (const int residual : {0, 1, 2}) {
        for (const std::size_t offset : {0u, 1u}) {
          expect_equal({spec_, dtype, length, residual, offset, 0.75f});
        }
      }
    }
  }
}

// Every 16-bit pattern, NaN payloads too.
TEST_P(Levels, test_all_16_bit_patterns_equal_scalar) {
  Bytes src(2 * 65536);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto word = static_cast<std::uint16_t>(i * 40503u);
    std::memcpy(src.data() + 2 * i, &word, 2);
  }
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    const Case test{.spec = spec_, .dtype = dtype, .length = 65536};
    ASSERT_TRUE(core::force_cpu_level(CpuLevel::Scalar).is_ok());
    const Outcome expected = outcome_of(test, src, {});
    for (const CpuLevel level : fast_levels()) {
      ASSERT_TRUE(core::force_cpu_level(level).is_ok());
      EXPECT_TRUE(outcome_of(test, src, {}) == expected) << core::to_string(level) << core::to_string(dtype);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Levels, testing::ValuesIn(kLevelSpecs), case_name);

}  // namespace
}  // namespace geocomm::codec
