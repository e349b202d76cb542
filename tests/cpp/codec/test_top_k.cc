#include <gtest/gtest.h>

#include "top_k_cases.h"

namespace geocomm::codec {
namespace {

// Lengths around everything that is cut into parts: vectors, groups, chunks, frames of a payload.
std::vector<std::size_t> edge_lengths() {
  std::vector<std::size_t> lengths = {0, 1, 2, 7, 8, 9, 63, 64, 65, 127, 500, 1000};
  for (const std::size_t edge : {std::size_t{4096}, std::size_t{8192}, std::size_t{1} << 18}) {
    for (const std::size_t near : {edge - 1, edge, edge + 1}) lengths.push_back(near);
  }
  return lengths;
}

TEST(TopKSelection, test_chunk_takes_what_sorting_takes) {
  for (const Data data : kAllData) {
    for (const std::size_t length : edge_lengths()) {
      const auto values = make_data(data, length);
      for (const std::uint32_t k : {1u, 64u, 2048u}) {
        CodecSpec spec = spec_of("topk:values=fp32");
        spec.k = k;
        const Bytes frame = compressed(spec, DType::Float32, to_bytes(values));
        const auto decoded = accumulated(frame, length);
        const auto chosen = largest_of_chunks(values, k);
        ASSERT_EQ(head_of(frame).count, static_cast<std::size_t>(std::ranges::count(chosen, true)));
        for (std::size_t i = 0; i < length; ++i) {
          if (chosen[i] && std::isnan(values[i])) {
            ASSERT_TRUE(std::isnan(decoded[i])) << i;
          } else {
            ASSERT_EQ(decoded[i], chosen[i] ? values[i] : 0.0f)
                << static_cast<int>(data) << ' ' << length << ' ' << k << ' ' << i;
          }
        }
      }
    }
  }
}

class TopKValues : public testing::TestWithParam<std::string_view> {
 protected:
  const CodecSpec spec_ = spec_of(GetParam());
};

TEST_P(TopKValues, test_new_residual_is_what_the_frame_lost) {
  for (const Data data : kAllData) {
    for (const DType dtype : kFloatTypes) {
      for (const std::size_t length : {0, 1, 700, 5000, 3 * 4096 + 17}) {
        const Bytes src = to_bytes(make_data(data, length), dtype);
        const auto values = to_floats(src, dtype);
        const auto old = gaussian(length, 0.01f, 5);
        auto residual = old;
        ErrorFeedback kept = feedback(residual);
        kept.decay = 0.75f;
        const Bytes frame = compressed(spec_, dtype, src, {.feedback = kept});
        const auto decoded = accumulated(frame, length);
        for (std::size_t i = 0; i < length; ++i) {
          const float scaled = 0.75f * old[i];
          const float sum = values[i] + scaled;
          if (std::isfinite(sum)) {
            ASSERT_EQ(residual[i], sum - decoded[i]) << core::to_string(dtype) << ' ' << i;
          } else {
            ASSERT_EQ(residual[i], 0.0f);
          }
        }
      }
    }
  }
}

TEST_P(TopKValues, test_bfloat16_residual_is_the_rounded_loss) {
  const std::size_t length = 9000;
  auto values = gaussian(length);
  values[3] = 3.4e38f;  // would round to Inf
  values[4] = kNan;
  const auto narrow = to_bytes(gaussian(length, 0.01f, 5), DType::BFloat16);
  const auto old = to_floats(narrow, DType::BFloat16);
  Bytes residual = narrow;
  const ErrorFeedback kept{residual.data(), DType::BFloat16, length, 1.0f};
  const Bytes frame = compressed(spec_, DType::Float32, to_bytes(values), {.feedback = kept});
  const auto decoded = accumulated(frame, length);
  const auto now = to_floats(residual, DType::BFloat16);
  for (std::size_t i = 0; i < length; ++i) {
    const float sum = values[i] + old[i];
    const float lost = std::isfinite(sum) ? sum - decoded[i] : 0.0f;
    ASSERT_EQ(now[i], core::bfloat16_to_float(core::float_to_bfloat16_saturated(lost))) << i;
  }
}

TEST_P(TopKValues, test_feedback_of_zeros_gives_the_bytes_of_none) {
  for (const Data data : {Data::Gaussian, Data::Special, Data::Ties}) {
    const Bytes src = to_bytes(make_data(data, 20000));
    std::vector<float> residual(20000, 0.0f);
    EXPECT_EQ(compressed(spec_, DType::Float32, src, {.feedback = feedback(residual)}),
              compressed(spec_, DType::Float32, src));
  }
}

// Over many rounds what arrived differs from what was sent by the last residual alone, and that stays small.
TEST_P(TopKValues, test_rounds_of_the_same_input_lose_nothing_in_sum) {
  constexpr std::size_t kLength = 5000;
  constexpr int kRounds = 400;
  const auto values = gaussian(kLength);
  const Bytes src = to_bytes(values);
  std::vector<float> residual(kLength, 0.0f);
  std::vector<double> arrived(kLength, 0.0);
  for (int round = 0; round < kRounds; ++round) {
    const Bytes frame = compressed(spec_, DType::Float32, src, {.feedback = feedback(residual)});
    const auto decoded = accumulated(frame, kLength);
    for (std::size_t i = 0; i < kLength; ++i) arrived[i] += decoded[i];
  }
  for (std::size_t i = 0; i < kLength; ++i) {
    // Each round may round the sum and the difference once, at a magnitude below 256.
    ASSERT_NEAR(arrived[i] + residual[i], kRounds * double{values[i]}, kRounds * 3e-5);
    ASSERT_LE(std::abs(residual[i]), 150.0f);
  }
}

TEST_P(TopKValues, test_decompress_rounds_what_accumulate_gives) {
  for (const DType dtype : kFloatTypes) {
    for (const Data data : {Data::Gaussian, Data::Special}) {
      const Bytes src = to_bytes(make_data(data, 9000), dtype);
      const Bytes frame = compressed(spec_, dtype, src);
      const auto wide = accumulated(frame, 9000);
      const auto out = to_floats(decompressed(frame, dtype, 9000), dtype);
      const auto expected = to_floats(to_bytes(wide, dtype), dtype);
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (std::isnan(expected[i])) {
          ASSERT_TRUE(std::isnan(out[i]));
        } else if (std::isinf(expected[i]) && std::isfinite(wide[i])) {
          ASSERT_TRUE(std::isfinite(out[i]));  // saturates
        } else {
          ASSERT_EQ(out[i], expected[i]) << core::to_string(dtype) << ' ' << i;
        }
      }
    }
  }
}

TEST_P(TopKValues, test_add_touches_chosen_elements_only) {
  const auto values = gaussian(9000);
  const Bytes frame = compressed(spec_, DType::Float32, to_bytes(values));
  const auto decoded = accumulated(frame, values.size());
  // -0 + 0 would be +0, a NaN would lose its payload.
  std::vector<float> sum(values.size(), -0.0f);
  std::vector<float> expected = sum;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    if (decoded[i] != 0.0f) expected[i] += decoded[i];
  }
  ASSERT_TRUE(decompress_accumulate(frame, sum, Accumulate::Add).is_ok());
  EXPECT_TRUE(same_bits(sum, expected));
}

TEST_P(TopKValues, test_chosen_values_are_close) {
  for (const Data data : {Data::Gaussian, Data::Growing}) {
    const auto values = make_data(data, 100000);
    const auto decoded = accumulated(compressed(spec_, DType::Float32, to_bytes(values)), values.size());
    double energy = 0;
    double error = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (decoded[i] == 0.0f) continue;
      energy += double{values[i]} * values[i];
      error += (double{values[i]} - decoded[i]) * (double{values[i]} - decoded[i]);
    }
    const bool has_levels = spec_.values == Values::Bit2 || spec_.id == CodecId::Loco;
    const double allowed = has_levels                     ? (data != Data::Gaussian ? 0.2
                                                             : spec_.k <= 64        ? 0.006
                                                                                    : 0.02)
                           : spec_.values == Values::Fp32 ? 0.0
                           : spec_.values == Values::Bf16 ? 4e-6
                                                          : 1e-4;
    EXPECT_LE(error, allowed * energy) << error / energy;
  }
}

TEST_P(TopKValues, test_frame_fits_its_bound_and_less_is_refused) {
  for (const Data data : kAllData) {
    for (const std::uint32_t k : {1u, 64u, 2048u}) {
      for (const std::size_t length : {0, 1, 100, 4096, 10000}) {
        CodecSpec spec = spec_;
        spec.k = k;
        const Bytes src = to_bytes(make_data(data, length));
        const std::size_t bound = compress_bound(spec, DType::Float32, length);
        EXPECT_LE(compressed(spec, DType::Float32, src).size(), bound);
        Bytes less(bound - 1);
        std::vector<float> residual(length, 0.5f);
        EXPECT_EQ(compress(spec, DType::Float32, src, less, {.feedback = feedback(residual)}).status().code(),
                  StatusCode::OutputTooSmall);
        EXPECT_TRUE(same_bits(residual, std::vector<float>(length, 0.5f)));
      }
    }
  }
}

TEST_P(TopKValues, test_nan_and_inf_arrive_and_harm_no_other_block) {
  auto values = gaussian(50000);
  values[10] = kNan;
  values[4097] = kInf;
  values[40000] = -kInf;
  const auto decoded = accumulated(compressed(spec_, DType::Float32, to_bytes(values)), values.size());
  EXPECT_TRUE(std::isnan(decoded[10]));
  EXPECT_EQ(decoded[4097], kInf);
  EXPECT_EQ(decoded[40000], -kInf);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i == 10 || i == 4097 || i == 40000) continue;
    ASSERT_TRUE(std::isfinite(decoded[i]));
    if (decoded[i] != 0.0f) {
      ASSERT_NEAR(decoded[i], values[i], 0.5 * std::abs(values[i])) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, TopKValues,
                         testing::Values("topk:values=fp32", "topk:values=bf16", "topk", "topk:values=bit2",
                                         "topk:k=700,values=bit2", "topk:k=400", "loco", "loco:k=41",
                                         "loco:k=700"),
                         case_name);

// A chunk of more NaN than it may choose: those that stay behind leave no trace.
TEST(TopKSpecialValues, test_all_nan_leaves_a_residual_of_zero) {
  for (const std::string_view text : {"topk:k=16", "topk:k=16,values=bit2", "loco:k=16"}) {
    const std::vector<float> values(10000, kNan);
    std::vector<float> residual(10000, 1.0f);
    const Bytes frame =
        compressed(spec_of(text), DType::Float32, to_bytes(values), {.feedback = feedback(residual)});
    if (spec_of(text).id == CodecId::TopK) {
      EXPECT_GE(head_of(frame).count, 40u);
    }
    EXPECT_TRUE(same_bits(residual, std::vector<float>(10000, 0.0f)));
  }
}

TEST(TopKSizes, test_tiny_on_gaussian_data_keeps_its_ratio) {
  constexpr std::size_t kLength = 1 << 18;
  const Bytes src = to_bytes(gaussian(kLength));
  const Bytes frame = compressed(spec_of("tiny"), DType::Float32, src);
  EXPECT_EQ(head_of(frame).count, 64u * 64u);
  EXPECT_GE(static_cast<double>(src.size()) / static_cast<double>(frame.size()), 146.0);
}

TEST(TopKSizes, test_index_is_a_bitmap_where_that_is_shorter) {
  const Bytes src = to_bytes(gaussian(8192));
  for (const std::uint32_t k : {341u, 342u, 1000u}) {
    CodecSpec spec = spec_of("topk:values=bf16");
    spec.k = k;
    const TopKHead head = head_of(compressed(spec, DType::Float32, src));
    EXPECT_EQ(head.count, 2 * k);
    EXPECT_EQ(static_cast<IndexMode>(head.index_mode), k > 341 ? IndexMode::Bitmap : IndexMode::Gaps);
    if (k > 341) {
      EXPECT_EQ(head.index_bytes, 1024u);
    }
  }
}

// A gap of any length: 255 is written as 255 and 0. The two largest lie around the end of the first chunk.
TEST(TopKSizes, test_long_gaps_arrive) {
  for (const std::size_t gap : {1u, 2u, 254u, 255u, 256u, 257u, 510u, 511u, 512u, 5000u}) {
    std::vector<float> values(2 * kTopKChunk, 0.0f);
    const std::size_t first = kTopKChunk - 1 - gap / 2;
    values[first] = values[first + gap] = 1.0f;
    const Bytes frame = compressed(spec_of("topk:k=1,values=fp32"), DType::Float32, to_bytes(values));
    EXPECT_EQ(accumulated(frame, values.size()), values) << gap;
  }
}

}  // namespace
}  // namespace geocomm::codec
