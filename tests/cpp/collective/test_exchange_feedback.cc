// Reductions with a codec and residuals of the caller's: nothing is lost over many operations, and replicas
// stay equal.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>

#include "exchange_fixture.h"

namespace geocomm::collective {
namespace {

using namespace testing;
using codec::CodecSpec;

constexpr std::size_t kElements = 9001;

// A group, and the residuals of one tensor of it: site by site, each of the whole vector.
class FeedbackGroup {
 public:
  FeedbackGroup(const std::vector<int>& site_sizes, Way way, std::size_t min_compress_bytes = 0)
      : group_(site_sizes,
               [way, min_compress_bytes](int, ExchangeConfig& config) {
                 config.min_compress_bytes = min_compress_bytes;
                 const auto sites = static_cast<std::size_t>(config.topology.site_count());
                 config.policy = policy_of({}, links_for(way, sites));
                 config.chunk_bytes = 4096;
               }),
        residuals_(site_sizes.size(), std::vector<float>(kElements)),
        reports_(static_cast<std::size_t>(group_.size())) {}

  std::vector<StripeData> stripes(SiteVectors& data, int rank) {
    auto stripes = data.stripes(rank);
    const auto site = static_cast<std::size_t>(group_.topology(0).site_of(rank));
    for (StripeData& stripe : stripes) {
      const std::span<float> residual(residuals_[site]);
      const FeedbackSpans all{residual, residual, scale_};
      stripe.feedback = all.part(stripe.stripe.range.begin, stripe.stripe.range.size());
    }
    return stripes;
  }

  std::vector<Status> all_reduce(SiteVectors& data, DType dtype, ReduceOp op, const CodecSpec& codec,
                                 float decay = 1.0f) {
    ++seq_;
    return group_.run([&](int rank) {
      auto own = stripes(data, rank);
      OpContext context = context_of(OpKind::AllReduce, seq_, dtype, kElements);
      context.caller = {codec, decay, &reports_[static_cast<std::size_t>(rank)]};
      return group_.exchange(rank).reduce(context, op, own);
    });
  }

  // Of the whole vector, from now on.
  void set_scale(std::vector<float> scale) { scale_ = std::move(scale); }

  ExchangeGroup& group() { return group_; }
  std::vector<std::vector<float>>& residuals() { return residuals_; }
  const std::vector<FeedbackReport>& reports() const { return reports_; }

 private:
  ExchangeGroup group_;
  std::vector<std::vector<float>> residuals_;
  std::vector<FeedbackReport> reports_;
  std::vector<float> scale_;
  std::uint64_t seq_ = 0;
};

class ExchangeFeedback : public ::testing::TestWithParam<Way> {};

// Sums of results and last residuals = sums of inputs, up to float's rounding and that to the dtype.
TEST_P(ExchangeFeedback, nothing_is_lost_over_operations_and_replicas_are_equal) {
  constexpr std::uint64_t kOperations = 6;
  for (const auto& sizes :
       std::vector<std::vector<int>>{{1, 1}, {2, 2}, {1, 1, 1}, {2, 1, 2}, {1, 2, 1, 1}}) {
    for (const std::string_view text :
         {"int8", "int4", "int4:round=stochastic", "balanced", "topk", "tiny", "loco", "bit1", "fp16"}) {
      for (const DType dtype : {DType::Float32, DType::BFloat16}) {
        for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Avg}) {
          FeedbackGroup feedback(sizes, GetParam());
          const double unit = op == ReduceOp::Avg ? feedback.group().size() : 1;
          std::vector<double> missing(kElements);
          double rounding = 1e-4;
          for (std::uint64_t t = 1; t <= kOperations; ++t) {
            SiteVectors data(feedback.group().topology(0), dtype, kElements, t);
            expect_all_ok(feedback.all_reduce(data, dtype, op, spec_of(text)));
            double largest = 0;
            for (const Bytes& output : data.outputs()) ASSERT_EQ(output, data.outputs()[0]) << text;
            for (std::size_t i = 0; i < kElements; ++i) {
              const double result = value_at(dtype, data.outputs()[0], i) * unit;
              largest = std::max(largest, std::abs(result));
              missing[i] -= result;
              for (const Bytes& input : data.inputs()) missing[i] += value_at(dtype, input, i);
            }
            if (dtype == DType::BFloat16) rounding += largest / 256;
          }
          for (std::size_t i = 0; i < kElements; ++i) {
            for (const auto& residual : feedback.residuals()) missing[i] -= residual[i];
            ASSERT_NEAR(missing[i], 0, rounding) << text << " " << core::to_string(dtype) << " at " << i;
          }
        }
      }
    }
  }
}

TEST_P(ExchangeFeedback, results_and_residuals_do_not_depend_on_who_comes_first) {
  for (const std::string_view text : {"int4:round=stochastic", "balanced", "tiny"}) {
    std::vector<Bytes> outputs;
    std::vector<std::vector<std::vector<float>>> residuals;
    for (int run = 0; run < 2; ++run) {
      FeedbackGroup feedback({2, 1, 1, 1}, GetParam());
      for (std::uint64_t t = 1; t <= 3; ++t) {
        SiteVectors data(feedback.group().topology(0), DType::Float32, kElements, t);
        expect_all_ok(feedback.all_reduce(data, DType::Float32, ReduceOp::Avg, spec_of(text)));
        if (t == 3) outputs.push_back(data.outputs()[0]);
      }
      residuals.push_back(feedback.residuals());
    }
    EXPECT_EQ(outputs[0], outputs[1]) << text;
    EXPECT_EQ(residuals[0], residuals[1]) << text;
  }
}

// What is reduced with scales is what is reduced of vectors that were divided by them, multiplied again.
TEST_P(ExchangeFeedback, scales_divide_what_is_encoded_and_multiply_what_comes_back) {
  std::vector<float> scale(kElements);
  for (std::size_t i = 0; i < kElements; ++i) scale[i] = std::exp2(static_cast<float>(i % 17) - 8);
  for (const std::string_view text : {"int8", "int4:round=stochastic", "small", "bit1", "lossless", "none"}) {
    for (const DType dtype : {DType::Float32, DType::BFloat16}) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Avg}) {
        FeedbackGroup scaled({2, 1, 1, 1}, GetParam());
        FeedbackGroup plain({2, 1, 1, 1}, GetParam());
        scaled.set_scale(scale);
        for (std::uint64_t t = 1; t <= 3; ++t) {
          SiteVectors large(scaled.group().topology(0), dtype, kElements, t);
          SiteVectors small(plain.group().topology(0), dtype, kElements, t);
          for (Bytes& input : large.inputs()) {
            for (std::size_t i = 0; i < kElements; ++i) {
              set_value(dtype, input, i, value_at(dtype, input, i) * scale[i]);
            }
          }
          large.reset_outputs();
          expect_all_ok(scaled.all_reduce(large, dtype, op, spec_of(text), 0.75f));
          expect_all_ok(plain.all_reduce(small, dtype, op, spec_of(text), 0.75f));
          double whole = 0;
          for (std::size_t i = 0; i < kElements; ++i) {
            const double expected = value_at(dtype, small.outputs()[0], i) * scale[i];
            whole += expected * expected;
            for (const Bytes& output : large.outputs()) ASSERT_EQ(value_at(dtype, output, i), expected);
            for (std::size_t site = 0; site < 4; ++site) {
              ASSERT_EQ(scaled.residuals()[site][i], plain.residuals()[site][i] * scale[i]) << text << i;
            }
          }
          for (std::size_t rank = 0; rank < 5; ++rank) {
            const FeedbackReport& one = scaled.reports()[rank];
            const FeedbackReport& other = plain.reports()[rank];
            EXPECT_EQ(one.input_square, other.input_square);
            EXPECT_EQ(one.residual_square, other.residual_square);
            EXPECT_EQ(one.scaled_square, other.result_square);
            EXPECT_EQ(one.wire_bytes, other.wire_bytes);
          }
          EXPECT_NEAR(scaled.reports()[2].result_square, whole, 1e-9 * whole);  // alone at its site
        }
      }
    }
  }
}

// The old residual is read only, and the new one whole, also in what no frame carries.
TEST_P(ExchangeFeedback, new_residual_goes_to_memory_of_its_own) {
  for (const std::string_view text : {"int4", "tiny", "none"}) {
    FeedbackGroup in_place({1, 1, 1, 1}, GetParam());
    FeedbackGroup apart({1, 1, 1, 1}, GetParam());
    for (auto* group : {&in_place, &apart}) {
      for (auto& residual : group->residuals()) residual.assign(kElements, 0.25f);
    }
    SiteVectors data(in_place.group().topology(0), DType::Float32, kElements, 1);
    SiteVectors same = data;
    expect_all_ok(in_place.all_reduce(data, DType::Float32, ReduceOp::Avg, spec_of(text)));
    std::vector<std::vector<float>> next(4, std::vector<float>(kElements, NAN));
    expect_all_ok(apart.group().run([&](int rank) {
      auto stripes = apart.stripes(same, rank);
      for (StripeData& stripe : stripes) {
        stripe.feedback.next = std::span(next[static_cast<std::size_t>(rank)])
                                   .subspan(stripe.stripe.range.begin, stripe.stripe.range.size());
      }
      OpContext context = context_of(OpKind::AllReduce, 1, DType::Float32, kElements);
      context.caller = {.codec = spec_of(text)};
      return apart.group().exchange(rank).reduce(context, ReduceOp::Avg, stripes);
    }));
    EXPECT_EQ(data.outputs(), same.outputs()) << text;
    EXPECT_EQ(next, in_place.residuals()) << text;
    for (const auto& residual : apart.residuals()) EXPECT_EQ(residual, std::vector<float>(kElements, 0.25f));
  }
}

TEST_P(ExchangeFeedback, decay_zero_forgets_what_was_lost_before) {
  FeedbackGroup feedback({1, 1, 1, 1}, GetParam());
  FeedbackGroup fresh({1, 1, 1, 1}, GetParam());
  for (auto& residual : feedback.residuals()) residual.assign(kElements, 100.0f);
  SiteVectors data(feedback.group().topology(0), DType::Float32, kElements, 1);
  SiteVectors same = data;
  expect_all_ok(feedback.all_reduce(data, DType::Float32, ReduceOp::Sum, spec_of("int8"), 0.0f));
  expect_all_ok(fresh.all_reduce(same, DType::Float32, ReduceOp::Sum, spec_of("int8")));
  EXPECT_EQ(data.outputs(), same.outputs());
  EXPECT_EQ(feedback.residuals(), fresh.residuals());
}

// None, Lossless, and an operation below min_compress_bytes.
TEST_P(ExchangeFeedback, exact_codecs_let_the_residual_go) {
  for (const std::string_view text : {"none", "lossless", "int8"}) {
    const std::size_t min_compress_bytes = text == "int8" ? 1 << 20 : 0;
    for (const DType dtype : {DType::Float32, DType::Float16}) {
      FeedbackGroup feedback({1, 2, 1, 1}, GetParam(), min_compress_bytes);
      std::vector<double> lost(kElements);
      for (std::size_t site = 0; site < 4; ++site) {
        for (std::size_t i = 0; i < kElements; ++i) {
          feedback.residuals()[site][i] = static_cast<float>(std::sin(static_cast<double>(i + 3000 * site)));
          lost[i] += feedback.residuals()[site][i];
        }
      }
      SiteVectors data(feedback.group().topology(0), dtype, kElements, 1);
      expect_all_ok(feedback.all_reduce(data, dtype, ReduceOp::Sum, spec_of(text)));
      const double rounding = dtype == DType::Float32 ? 1e-5 : 0.01;
      for (std::size_t i = 0; i < kElements; ++i) {
        double exact = lost[i];
        for (const Bytes& input : data.inputs()) exact += value_at(dtype, input, i);
        ASSERT_NEAR(value_at(dtype, data.outputs()[0], i), exact, rounding) << text << " at " << i;
        for (const auto& residual : feedback.residuals()) {
          if (dtype == DType::Float32) {
            ASSERT_EQ(residual[i], 0.0f);
          } else {
            ASSERT_LE(std::abs(residual[i]), 0.004f);  // half of the last bit of values below 8
          }
        }
      }
      for (const Bytes& output : data.outputs()) EXPECT_EQ(output, data.outputs()[0]);
    }
  }
}

TEST_P(ExchangeFeedback, report_has_the_squares_of_what_was_encoded_and_lost_and_the_bytes_sent) {
  FeedbackGroup feedback({1, 1, 1, 1}, GetParam());
  SiteVectors data(feedback.group().topology(0), DType::Float32, kElements, 1);
  expect_all_ok(feedback.all_reduce(data, DType::Float32, ReduceOp::Avg, spec_of("int8")));
  for (int rank = 0; rank < 4; ++rank) {
    const FeedbackReport& report = feedback.reports()[static_cast<std::size_t>(rank)];
    const auto site = static_cast<std::size_t>(rank);
    double lost = 0;
    for (const float one : feedback.residuals()[site]) lost += static_cast<double>(one) * one;
    EXPECT_NEAR(report.residual_square, lost, 1e-6 * lost);
    if (GetParam() == Way::BroadcastAll) {
      double encoded = 0;
      for (std::size_t i = 0; i < kElements; ++i) {
        encoded += std::pow(value_at(DType::Float32, data.inputs()[site], i), 2);
      }
      EXPECT_NEAR(report.input_square, encoded, 1e-6 * encoded);
    } else {  // and sums of four sites
      EXPECT_GT(report.input_square, kElements * 0.9);
      EXPECT_LT(report.input_square, kElements * 4.1);
    }
    const ExchangeStats stats = feedback.group().exchange(rank).stats();
    EXPECT_EQ(report.wire_bytes, stats.wire_bytes_sent - stats.relayed_bytes);
  }
}

TEST_P(ExchangeFeedback, nan_shows_in_the_report_of_who_encodes_it_and_leaves_finite_residuals) {
  for (const std::string_view text : {"int8", "topk", "none"}) {
    FeedbackGroup feedback({1, 1, 1, 1}, GetParam());
    SiteVectors data(feedback.group().topology(0), DType::Float32, kElements, 1);
    set_value(DType::Float32, data.inputs()[1], 700, std::numeric_limits<double>::quiet_NaN());
    data.reset_outputs();
    expect_all_ok(feedback.all_reduce(data, DType::Float32, ReduceOp::Sum, spec_of(text)));
    int not_finite = 0;
    for (const FeedbackReport& report : feedback.reports()) {
      not_finite += std::isfinite(report.input_square) ? 0 : 1;
    }
    EXPECT_GE(not_finite, 1) << text;
    for (const Bytes& output : data.outputs()) {
      EXPECT_FALSE(std::isfinite(square_of(DType::Float32, output))) << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reduce, ExchangeFeedback,
                         ::testing::Values(Way::BroadcastAll, Way::EqualOwners, Way::UnequalOwners,
                                           Way::TwoLevels),
                         [](const auto& info) { return name_of(info.param); });

TEST(ExchangeFeedbackRefused, what_it_is_not_for) {
  FeedbackGroup feedback({1, 1}, Way::BroadcastAll);
  SiteVectors data(feedback.group().topology(0), DType::Float32, kElements, 1);
  const auto reduce = [&](std::vector<StripeData> stripes, const std::optional<CallerCodec>& caller,
                          ReduceOp op = ReduceOp::Sum, DType dtype = DType::Float32) {
    OpContext context = context_of(OpKind::AllReduce, 1, dtype, kElements);
    context.caller = caller;
    return feedback.group().exchange(0).reduce(context, op, stripes).code();
  };
  const auto with = feedback.stripes(data, 0);
  const CallerCodec int8 = {.codec = spec_of("int8")};
  auto shorter = with;
  shorter[0].feedback = with[0].feedback.part(0, kElements - 1);
  EXPECT_EQ(reduce(shorter, int8), StatusCode::InvalidArgument);
  auto nowhere = with;
  nowhere[0].feedback.next = {};
  EXPECT_EQ(reduce(nowhere, int8), StatusCode::InvalidArgument);
  auto scaled = with;
  scaled[0].feedback.scale = with[0].feedback.residual.first(kElements - 1);
  EXPECT_EQ(reduce(scaled, int8), StatusCode::InvalidArgument);
  scaled = data.stripes(0);
  scaled[0].feedback.scale = with[0].feedback.residual;
  EXPECT_EQ(reduce(scaled, int8), StatusCode::InvalidArgument);
  EXPECT_EQ(reduce(with, std::nullopt), StatusCode::InvalidArgument);
  EXPECT_EQ(reduce(with, CallerCodec{.codec = spec_of("int8"), .decay = INFINITY}),
            StatusCode::InvalidArgument);
  EXPECT_EQ(reduce(data.stripes(0), CallerCodec{.codec = spec_of("tiny")}), StatusCode::Unsupported);
  EXPECT_EQ(reduce(with, int8, ReduceOp::Max), StatusCode::Unsupported);
  EXPECT_EQ(reduce(with, int8, ReduceOp::Sum, DType::Int32), StatusCode::Unsupported);
}

TEST(ExchangeFeedbackMismatch, another_codec_is_an_error_on_both) {
  FeedbackGroup feedback({1, 1}, Way::BroadcastAll);
  SiteVectors data(feedback.group().topology(0), DType::Float32, kElements, 1);
  const auto results = feedback.group().run([&](int rank) {
    auto stripes = feedback.stripes(data, rank);
    OpContext context = context_of(OpKind::AllReduce, 1, DType::Float32, kElements);
    context.caller = {.codec = spec_of(rank == 0 ? "int8" : "int4")};
    return feedback.group().exchange(rank).reduce(context, ReduceOp::Sum, stripes);
  });
  for (const Status& status : results) EXPECT_EQ(status.code(), StatusCode::InvalidArgument);
}

}  // namespace
}  // namespace geocomm::collective
