// Every codec, dtype and length: sizes, determinism, alignment, error bounds.
#include <gtest/gtest.h>

#include "codec/frames/thread_scratch.h"
#include "codec_cases.h"

namespace geocomm::codec {
namespace {

class RoundTrip : public testing::TestWithParam<std::string_view> {
 protected:
  const CodecSpec spec_ = spec_of(GetParam());
};

struct Moments {
  double peak = 0;
  double mean_magnitude = 0;
  double rms = 0;
};

Moments moments_of(std::span<const float> block) {
  Moments of;
  for (const double value : block) {
    of.peak = std::max(of.peak, std::abs(value));
    of.mean_magnitude += std::abs(value) / static_cast<double>(block.size());
    of.rms += value * value / static_cast<double>(block.size());
  }
  of.rms = std::sqrt(of.rms);
  return of;
}

// Largest error of one element by the codec's definition, given its block. Scales are within 2^-7 of what
// they stand for.
double error_bound(const CodecSpec& spec, double value, const Moments& block) {
  const double magnitude = std::abs(value);
  const double least_scale = std::ldexp(1.0, -126);
  // Between the levels half of their distance, beyond them what is left.
  const auto of_levels = [&](double scale, double half_distance, double largest) {
    return std::max(scale * half_distance * 1.01, magnitude - scale * largest * 0.99) + least_scale;
  };
  switch (spec.id) {
    case CodecId::None:
      return 0;
    case CodecId::Fp16:
      return std::max(std::ldexp(magnitude, -11), std::ldexp(1.0, -25));
    case CodecId::Bf16:
      return std::ldexp(magnitude, -8);
    case CodecId::Bit2:
      return of_levels(block.rms, 0.5288, 1.5104);
    case CodecId::Bit1:
      return of_levels(block.mean_magnitude, 1.0, 1.0);
    default:
      break;
  }
  const double levels = spec.id == CodecId::Int8 ? 127 : 7;
  const double scale = std::max(block.peak / levels * (1 + std::ldexp(1.0, -7)), least_scale);
  return scale * (spec.rounding == Rounding::Nearest ? 0.5001 : 1.0001);
}

void expect_within_bound(const CodecSpec& spec, std::span<const float> values,
                         std::span<const float> decoded) {
  const std::size_t block = spec.has_blocks() ? spec.block : values.size();
  for (std::size_t first = 0; first < values.size(); first += block) {
    const std::size_t end = std::min(first + block, values.size());
    const Moments moments = moments_of(values.subspan(first, end - first));
    for (std::size_t i = first; i < end; ++i) {
      ASSERT_LE(std::abs(double{decoded[i]} - values[i]), error_bound(spec, values[i], moments))
          << spec.to_string() << " element " << i << ": " << values[i] << " -> " << decoded[i];
    }
  }
}

TEST_P(RoundTrip, test_round_trip_of_every_length_stays_within_bound) {
  std::vector<std::size_t> lengths;
  for (std::size_t length = 0; length <= 1000; ++length) lengths.push_back(length);
  for (const std::size_t edge : {2048u, 4096u, 8192u, 262144u}) {
    for (const std::size_t length : {edge - 1, edge + 0u, edge + 1}) lengths.push_back(length);
  }
  const auto all = gaussian(262145, 0.01f);
  for (const DType dtype : kFloatTypes) {
    for (const std::size_t length : lengths) {
      const Bytes src = to_bytes(std::span(all).first(length), dtype);
      const auto values = to_floats(src, dtype);
      const Bytes frame = compressed(spec_, dtype, src);
      const auto view = parse_frame(frame);
      ASSERT_TRUE(view.is_ok());
      EXPECT_EQ(view->elements, length);
      EXPECT_EQ(view->dtype, dtype);
      EXPECT_EQ(view->spec, spec_);
      EXPECT_EQ(frame_bytes(*view), frame.size());
      const auto decoded = accumulated(frame, length);
      expect_within_bound(spec_, values, decoded);
      // decompress() rounds those values to the dtype.
      const Bytes rounded = decompressed(frame, dtype, length);
      ASSERT_EQ(rounded, to_bytes(decoded, dtype)) << core::to_string(dtype) << ' ' << length;
    }
  }
}

TEST_P(RoundTrip, test_accumulate_adds_in_float) {
  for (const DType dtype : kFloatTypes) {
    const auto src = to_bytes(gaussian(777), dtype);
    const Bytes frame = compressed(spec_, dtype, src);
    const auto decoded = accumulated(frame, 777);
    const auto start = gaussian(777, 3.0f, 99);
    auto sum = start;
    ASSERT_TRUE(decompress_accumulate(frame, sum, Accumulate::Add).is_ok());
    for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], start[i] + decoded[i]);
  }
}

TEST_P(RoundTrip, test_compress_twice_gives_the_same_bytes) {
  const auto src = to_bytes(gaussian(5000));
  const CompressOptions options{.seed = 42, .first_element = 1000};
  EXPECT_EQ(compressed(spec_, DType::Float32, src, options), compressed(spec_, DType::Float32, src, options));
}

// A program may compress a whole model as one frame, once.
TEST_P(RoundTrip, test_frame_larger_than_usual_leaves_no_more_memory_with_the_thread_than_others) {
  constexpr std::size_t kElements = std::size_t{1} << 23;
  std::vector<float> values(kElements);
  for (std::size_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(i % 997) - 400.0f;
  const auto frame = compressed(spec_, DType::Float32, to_bytes(values));
  (void)decompressed(frame, DType::Float32, kElements);
  (void)accumulated(frame, kElements);
  for (const ScratchBuffer& kept : thread_scratch_buffers()) EXPECT_LE(kept.capacity, kKeptScratch);
}

TEST_P(RoundTrip, test_any_alignment_gives_the_same_bytes) {
  for (const DType dtype : kFloatTypes) {
    const auto src = to_bytes(gaussian(1003), dtype);
    const Bytes expected = compressed(spec_, dtype, src);
    const Bytes expected_out = decompressed(expected, dtype, 1003);
    for (std::size_t offset = 1; offset < 8; ++offset) {
      Bytes moved_src(offset + src.size());
      std::memcpy(moved_src.data() + offset, src.data(), src.size());
      Bytes dst(offset + compress_bound(spec_, dtype, 1003));
      const auto room = std::span(dst).subspan(offset);
      const auto size = compress(spec_, dtype, std::span(moved_src).subspan(offset), room);
      ASSERT_TRUE(size.is_ok());
      ASSERT_TRUE(std::ranges::equal(room.first(*size), expected));
      Bytes out(offset + expected_out.size());
      ASSERT_TRUE(decompress(room.first(*size), std::span(out).subspan(offset)).is_ok());
      ASSERT_TRUE(std::ranges::equal(std::span(out).subspan(offset), expected_out));
    }
  }
}

TEST_P(RoundTrip, test_compress_into_just_the_frame_works_and_one_byte_less_does_not) {
  for (const std::size_t length : {0, 1, 63, 256, 1000}) {
    auto values = gaussian(length);
    if (length > 300) values[5] = kNan;  // a raw block in front of others
    const auto src = to_bytes(values);
    Bytes exact(compress_bound(spec_, DType::Float32, length));
    const auto size = compress(spec_, DType::Float32, src, exact);
    ASSERT_TRUE(size.is_ok()) << size.status().to_string();
    Bytes less(exact.size() - 1);
    auto residual = gaussian(length, 0.001f);
    const auto before = residual;
    const CompressOptions options{.feedback = feedback(residual)};
    EXPECT_EQ(compress(spec_, DType::Float32, src, less, options).status().code(),
              StatusCode::OutputTooSmall);
    EXPECT_TRUE(same_bits(residual, before));
  }
}

TEST_P(RoundTrip, test_compress_bound_holds_when_all_is_raw) {
  for (const DType dtype : kFloatTypes) {
    for (const std::size_t length : {1, 64, 257, 5000}) {
      const auto src = to_bytes(std::vector<float>(length, kNan), dtype);
      const Bytes frame = compressed(spec_, dtype, src);
      const auto decoded = accumulated(frame, length);
      EXPECT_TRUE(std::ranges::all_of(decoded, [](float value) { return std::isnan(value); }));
      EXPECT_LE(frame.size(), compress_bound(spec_, dtype, length));
      if (spec_.has_blocks()) {
        if (spec_.entropy == Entropy::None) {
          EXPECT_EQ(frame.size(), compress_bound(spec_, dtype, length));
        }
        EXPECT_EQ(decompressed(frame, dtype, length), src);
      }
    }
  }
}

TEST_P(RoundTrip, test_decompress_to_another_size_is_refused) {
  const auto src = to_bytes(gaussian(100));
  const Bytes frame = compressed(spec_, DType::Float32, src);
  Bytes smaller(399);
  Bytes larger(401);
  std::vector<float> few(99);
  std::vector<float> many(101);
  EXPECT_EQ(decompress(frame, smaller).code(), StatusCode::OutputTooSmall);
  EXPECT_EQ(decompress(frame, larger).code(), StatusCode::InvalidArgument);
  EXPECT_EQ(decompress_accumulate(frame, few, Accumulate::Add).code(), StatusCode::OutputTooSmall);
  EXPECT_EQ(decompress_accumulate(frame, many, Accumulate::Add).code(), StatusCode::InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Codecs, RoundTrip, testing::ValuesIn(kAllSpecs), case_name);

// The mean squared errors that the quantizers are known for, on a Gaussian of deviation 1.
TEST(Compress, test_coarse_codecs_on_a_gaussian_lose_what_theory_says) {
  const auto values = gaussian(1 << 18);
  struct Known {
    const char* codec;
    double loss;
  };
  for (const auto& [codec, loss] : {Known{"bit2:block=4096", 0.1175}, Known{"bit1:block=4096", 0.3634}}) {
    const auto decoded =
        accumulated(compressed(spec_of(codec), DType::Float32, to_bytes(values)), values.size());
    double error = 0;
    double energy = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      error += (double{decoded[i]} - values[i]) * (double{decoded[i]} - values[i]);
      energy += double{values[i]} * values[i];
    }
    EXPECT_NEAR(error / energy, loss, 0.03 * loss) << codec;
  }
}

TEST(Compress, test_none_of_every_dtype_is_exact) {
  for (std::uint8_t id = 0; id < core::kDTypeCount; ++id) {
    const auto dtype = static_cast<DType>(id);
    Bytes src(core::size_of(dtype) * 333);
    for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<std::byte>(i * 37 + 11);
    const Bytes frame = compressed(CodecSpec{}, dtype, src);
    EXPECT_EQ(frame.size(), sizeof(FrameHeader) + src.size());
    EXPECT_EQ(decompressed(frame, dtype, 333), src);
  }
}

TEST(Compress, test_lossy_codec_of_other_dtype_is_unsupported) {
  Bytes dst(10000);
  const Bytes src(64);
  for (const DType dtype :
       {DType::Float64, DType::Int8, DType::UInt8, DType::Int16, DType::Int32, DType::Int64, DType::Bool}) {
    for (const auto text : kAllSpecs) {
      if (text == "none") continue;
      EXPECT_EQ(compress(spec_of(text), dtype, src, dst).status().code(), StatusCode::Unsupported);
    }
    std::vector<float> residual(64 / core::size_of(dtype));
    const CompressOptions options{.feedback = feedback(residual)};
    EXPECT_EQ(compress(CodecSpec{}, dtype, src, dst, options).status().code(), StatusCode::Unsupported);
  }
}

TEST(Compress, test_bad_arguments_are_invalid) {
  Bytes dst(10000);
  const Bytes src(64);
  const CodecSpec int8 = spec_of("int8");
  EXPECT_EQ(compress(int8, DType::Float32, std::span(src).first(63), dst).status().code(),
            StatusCode::InvalidArgument);
  std::vector<float> residual(15);
  EXPECT_EQ(compress(int8, DType::Float32, src, dst, {.feedback = feedback(residual)}).status().code(),
            StatusCode::InvalidArgument);
  for (const std::uint32_t block : {0u, 1u, 32u, 100u, 8192u}) {
    const CodecSpec bad{.id = CodecId::Int8, .block = block};
    EXPECT_EQ(compress(bad, DType::Float32, src, dst).status().code(), StatusCode::InvalidArgument);
    EXPECT_GE(compress_bound(bad, DType::Float32, 16), sizeof(FrameHeader));
  }
}

TEST(Accumulate, test_frame_of_integers_is_unsupported) {
  const Bytes src(64);
  const Bytes frame = compressed(CodecSpec{}, DType::Int32, src);
  std::vector<float> dst(16);
  EXPECT_EQ(decompress_accumulate(frame, dst, Accumulate::Add).code(), StatusCode::Unsupported);
}

}  // namespace
}  // namespace geocomm::codec
