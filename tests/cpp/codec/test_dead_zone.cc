// The dead-zone quantizer: its definition against a plain computation, levels against Scalar, edges.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <set>

#include "codec/entropy/plane.h"
#include "codec/payload/payload.h"
#include "codec_cases.h"
#include "core/executor.h"
#include "level_cases.h"

namespace geocomm::codec {
namespace {

constexpr std::uint16_t kRawStep = 0x7F80;

// Lengths around the units of the kernels and the edges of blocks.
std::vector<std::size_t> all_lengths() {
  std::vector<std::size_t> lengths;
  for (std::size_t length = 0; length <= 1000; ++length) lengths.push_back(length);
  for (const std::size_t edge : {4096u, 8192u}) {
    for (const std::size_t length : {edge - 65, edge - 64, edge - 1, edge + 0u, edge + 1, edge + 64}) {
      lengths.push_back(length);
    }
  }
  return lengths;
}

// The definition, written for reading: one block at a time, one element at a time.
struct Reference {
  std::vector<std::uint16_t> steps;
  std::vector<int> codes;  // 0 in raw blocks
  std::vector<float> decoded;
};
Reference reference_of(const CodecSpec& spec, std::span<const float> values) {
  Reference out;
  for (std::size_t first = 0; first < values.size(); first += spec.block) {
    const auto block = values.subspan(first, std::min<std::size_t>(spec.block, values.size() - first));
    std::uint32_t peak = 0;
    for (const float value : block) peak = std::max(peak, std::bit_cast<std::uint32_t>(std::abs(value)));
    std::uint16_t step_bits = kRawStep;
    std::vector<int> codes(block.size(), 0);
    if (peak < core::kFloatInfBits) {
      const int exponent = std::clamp(static_cast<int>(peak >> 23), 1, 253) - 127;
      std::array<float, 128> sums{};
      for (std::size_t i = 0; i < block.size(); ++i) {
        const float scaled = std::ldexp(block[i], -exponent);
        sums[i % 128] += scaled * scaled;
      }
      for (std::size_t half = 64; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
      }
      const float rms = std::ldexp(std::sqrt(sums[0] / static_cast<float>(block.size())), exponent);
      step_bits = std::clamp<std::uint16_t>(core::float_to_bfloat16(rms * spec.step), 0x0080, 0x7BFF);
      const float inverse = 1.0f / core::bfloat16_to_float(step_bits);
      for (std::size_t i = 0; i < block.size(); ++i) {
        const float y = block[i] * inverse;
        const float shifted = y - std::copysign(0.1f, y);
        if (std::abs(shifted) >= 127.5f) step_bits = kRawStep;
        codes[i] = std::abs(shifted) < 1000.0f ? static_cast<int>(std::nearbyint(shifted)) : 0;
      }
    }
    out.steps.push_back(step_bits);
    for (std::size_t i = 0; i < block.size(); ++i) {
      const bool raw = step_bits == kRawStep;
      out.codes.push_back(raw ? 0 : codes[i]);
      const float decoded = static_cast<float>(codes[i]) * core::bfloat16_to_float(step_bits);
      out.decoded.push_back(raw ? block[i] : decoded);
    }
  }
  return out;
}

// The payload of a frame without a stage, taken apart.
struct Parts {
  std::vector<std::uint16_t> steps;
  std::vector<int> codes;
  std::size_t raw_bytes = 0;
};
Parts parts_of(const Bytes& frame) {
  const auto view = parse_frame(frame);
  EXPECT_TRUE(view.is_ok());
  const std::size_t blocks = (view->elements + view->spec.block - 1) / view->spec.block;
  Parts parts;
  parts.steps.resize(blocks);
  std::memcpy(parts.steps.data(), view->payload.data(), 2 * blocks);
  const auto bitmap = view->payload.subspan(2 * blocks);
  const auto codes = bitmap.subspan((view->elements + 7) / 8);
  std::size_t next = 0;
  for (std::size_t i = 0; i < view->elements; ++i) {
    const bool is_set = (static_cast<unsigned>(bitmap[i / 8]) >> (i % 8) & 1u) != 0;
    parts.codes.push_back(is_set ? static_cast<std::int8_t>(codes[next++]) : 0);
  }
  parts.raw_bytes = codes.size() - next;
  return parts;
}

// Magnitudes from subnormal to huge, a raw block and a block of zeros among ordinary ones.
std::vector<float> mixed_values(std::size_t count, std::uint32_t block) {
  auto values = gaussian(count, 0.01f);
  for (std::size_t i = 0; i < count; ++i) {
    switch (i / block % 7) {
      case 1:
        values[i] *= 1e-38f;
        break;
      case 2:
        values[i] *= 1e37f;
        break;
      case 3:
        values[i] = 0.0f;
        break;
      case 4:
        if (i % block == 5) values[i] = kNan;
        break;
      case 5:
        if (i % block == 7) values[i] = 1e5f;  // alone: a large code
        break;
      default:
        break;
    }
  }
  return values;
}

TEST(DeadZone, test_codes_and_steps_follow_the_definition) {
  for (const char* text : {"deadzone+none", "deadzone:block=64+none", "deadzone:step=0.05,block=256+none",
                           "deadzone:step=8,block=128+none"}) {
    const CodecSpec spec = spec_of(text);
    for (const std::size_t length : {1u, 63u, 64u, 65u, 4096u, 4097u, 30000u}) {
      const auto values = mixed_values(length, spec.block);
      const Reference expected = reference_of(spec, values);
      const Bytes frame = compressed(spec, DType::Float32, to_bytes(values));
      const Parts parts = parts_of(frame);
      ASSERT_EQ(parts.steps, expected.steps) << text << ' ' << length;
      ASSERT_EQ(parts.codes, expected.codes) << text << ' ' << length;
      ASSERT_EQ(to_bytes(accumulated(frame, length)), to_bytes(expected.decoded)) << text << ' ' << length;
    }
  }
}

TEST(DeadZone, test_every_length_and_dtype_is_the_same_at_every_level) {
  const auto values = mixed_values(9000, 128);
  for (const char* text : {"deadzone:block=128", "deadzone:step=1.4+none", "bitplanes:block=128,step=0.3",
                           "bitplanes:step=1.4+none"}) {
    for (const DType dtype : kFloatTypes) {
      for (const std::size_t length : all_lengths()) {
        expect_same_at_every_level(spec_of(text), dtype, to_bytes(std::span(values).first(length), dtype));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(DeadZone, test_feedback_is_the_same_at_every_level) {
  const auto values = mixed_values(5000, 256);
  auto residual = gaussian(5000, 0.003f, 4);
  residual[100] = kInf;
  for (const DType dtype : kFloatTypes) {
    for (const DType residual_dtype : {DType::Float32, DType::BFloat16}) {
      Bytes old = to_bytes(residual, residual_dtype);
      for (const std::size_t length : {0u, 1u, 63u, 64u, 255u, 256u, 257u, 700u, 4095u, 4096u, 5000u}) {
        const ErrorFeedback feedback{old.data(), residual_dtype, length, 0.9f};
        expect_same_at_every_level(spec_of("deadzone:block=256"), dtype,
                                   to_bytes(std::span(values).first(length), dtype), feedback);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(DeadZone, test_error_is_at_most_six_tenths_of_the_step) {
  for (const float step : {0.05f, 0.7f, 1.4f, 8.0f}) {
    CodecSpec spec = spec_of("deadzone:block=512+none");
    spec.step = step;
    const auto values = gaussian(10000, 3.0f);
    const Bytes frame = compressed(spec, DType::Float32, to_bytes(values));
    const Parts parts = parts_of(frame);
    const auto decoded = accumulated(frame, values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float width = core::bfloat16_to_float(parts.steps[i / 512]);
      ASSERT_NEAR(width, 3.0f * step, 0.2f * 3.0f * step);
      ASSERT_LE(std::abs(decoded[i] - values[i]), 0.6001f * width);
      ASSERT_EQ(decoded[i] == 0.0f, std::abs(values[i]) <= 0.6f * width) << values[i] / width;
    }
  }
}

TEST(DeadZone, test_residual_is_what_the_frame_lost) {
  for (const DType residual_dtype : {DType::Float32, DType::BFloat16}) {
    for (const DType dtype : kFloatTypes) {
      for (const std::size_t length : {1u, 64u, 257u, 5000u}) {
        const Bytes src = to_bytes(gaussian(length), dtype);
        const auto values = to_floats(src, dtype);
        Bytes residual = to_bytes(gaussian(length, 0.1f, 5), residual_dtype);
        const auto old = to_floats(residual, residual_dtype);
        const ErrorFeedback feedback{residual.data(), residual_dtype, length, 0.5f};
        const Bytes frame = compressed(spec_of("deadzone"), dtype, src, {.feedback = feedback});
        const auto decoded = accumulated(frame, length);
        std::vector<float> lost(length);
        for (std::size_t i = 0; i < length; ++i) lost[i] = (values[i] + 0.5f * old[i]) - decoded[i];
        ASSERT_EQ(residual, to_bytes(lost, residual_dtype));
      }
    }
  }
}

TEST(DeadZone, test_rounds_with_feedback_lose_nothing_in_sum) {
  constexpr std::size_t kLength = 5000;
  constexpr int kRounds = 30;
  const auto values = gaussian(kLength);
  std::vector<float> residual(kLength, 0.0f);
  std::vector<double> arrived(kLength, 0.0);
  for (int round = 0; round < kRounds; ++round) {
    const Bytes frame = compressed(spec_of("deadzone:step=1.4"), DType::Float32, to_bytes(values),
                                   {.feedback = feedback(residual)});
    const auto decoded = accumulated(frame, kLength);
    for (std::size_t i = 0; i < kLength; ++i) arrived[i] += decoded[i];
  }
  for (std::size_t i = 0; i < kLength; ++i) {
    ASSERT_NEAR(arrived[i] + residual[i], kRounds * double{values[i]}, kRounds * 4e-6);
  }
}

// A block with NaN or Inf, and one whose largest code would exceed 127, go raw; others know nothing of it.
TEST(DeadZone, test_raw_blocks_arrive_bit_for_bit) {
  for (const char* text : {"deadzone:block=64", "deadzone:block=64,step=0.05+none", "bitplanes:block=64"}) {
    for (const DType dtype : kFloatTypes) {
      for (const float special : {kNan, -kNan, kInf, -kInf, std::bit_cast<float>(0x7FC12345u)}) {
        auto values = gaussian(64 * 3 + 10);
        values[64 + 17] = special;
        values[64 * 3 + 3] = special;
        const Bytes src = to_bytes(values, dtype);
        const Bytes out = decompressed(compressed(spec_of(text), dtype, src), dtype, values.size());
        const std::size_t block = 64 * core::size_of(dtype);
        ASSERT_EQ(std::memcmp(out.data() + block, src.data() + block, block), 0) << text;
        ASSERT_EQ(std::memcmp(out.data() + 3 * block, src.data() + 3 * block, src.size() - 3 * block), 0);
        ASSERT_NE(std::memcmp(out.data() + 2 * block, src.data() + 2 * block, block), 0);
      }
    }
  }
  std::vector<float> outlier(4096, 0.0f);
  outlier[7] = 1.0f;  // rms 1/64: at step 0.5 code 128 would be needed
  const Bytes src = to_bytes(outlier);
  EXPECT_EQ(parts_of(compressed(spec_of("deadzone:step=0.5+none"), DType::Float32, src)).raw_bytes,
            src.size());
  EXPECT_EQ(parts_of(compressed(spec_of("deadzone:step=0.51+none"), DType::Float32, src)).raw_bytes, 0u);
}

TEST(DeadZone, test_extreme_magnitudes_stay_finite_and_close) {
  const float max = std::numeric_limits<float>::max();
  for (const float magnitude :
       {max, max / 2, 1e30f, 1e-30f, std::ldexp(1.0f, -126), std::ldexp(1.0f, -149)}) {
    auto values = gaussian(4096);
    for (float& value : values) value = std::copysign(magnitude, value);
    for (const float value :
         accumulated(compressed(spec_of("deadzone"), DType::Float32, to_bytes(values)), 4096)) {
      ASSERT_TRUE(std::isfinite(value));
      // +-1 rms at a step of 0.7: |q| = 1; below the least step: within it.
      ASSERT_LE(std::abs(std::abs(value) - magnitude),
                std::max(0.6f * 0.71f * magnitude, std::ldexp(1.0f, -126)));
    }
  }
}

TEST(DeadZone, test_zeros_take_a_bitmap_of_zeros) {
  for (const float zero : {0.0f, -0.0f}) {
    const std::vector<float> values(10000, zero);
    const Bytes frame = compressed(spec_of("deadzone+none"), DType::Float32, to_bytes(values));
    EXPECT_EQ(frame.size(), sizeof(FrameHeader) + 3 * 2 + 1250);
    EXPECT_TRUE(same_bits(accumulated(frame, 10000), std::vector<float>(10000, 0.0f)));
  }
}

TEST(DeadZone, test_frame_of_nothing_is_a_header) {
  const Bytes frame = compressed(spec_of("deadzone"), DType::Float32, {});
  EXPECT_EQ(frame.size(), sizeof(FrameHeader));
  EXPECT_TRUE(decompress(frame, {}).is_ok());
}

TEST(DeadZone, test_bound_holds_and_one_byte_less_is_refused) {
  for (const char* text : {"deadzone", "deadzone:block=64+none", "deadzone:step=0.05",
                           "bitplanes:block=64+none", "bitplanes:step=0.05"}) {
    const CodecSpec spec = spec_of(text);
    for (const DType dtype : kFloatTypes) {
      for (const std::size_t length : {1u, 64u, 1000u, 20000u, 300000u}) {
        for (const bool raw : {false, true}) {
          const auto src = to_bytes(raw ? std::vector<float>(length, kNan) : gaussian(length), dtype);
          const Bytes frame = compressed(spec, dtype, src);
          EXPECT_EQ(decompressed(frame, dtype, length).size(), src.size());
          Bytes less(compress_bound(spec, dtype, length) - 1);
          EXPECT_EQ(compress(spec, dtype, src, less).status().code(), StatusCode::OutputTooSmall);
        }
      }
    }
  }
}

TEST(DeadZone, test_gaussian_reaches_its_ratio) {
  const auto values = gaussian(std::size_t{1} << 18);
  const auto src = to_bytes(values);
  EXPECT_GT(static_cast<double>(src.size()),
            12.0 * static_cast<double>(compressed(spec_of("balanced"), DType::Float32, src).size()));
  EXPECT_GT(static_cast<double>(src.size()),
            15 * static_cast<double>(compressed(spec_of("small"), DType::Float32, src).size()));
}

}  // namespace
}  // namespace geocomm::codec
