// All-reduces with error feedback over sites, of which one has its tensor on a device: bits of the host in
// results and residuals, operation after operation.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "collective/cuda/batched_reduction.h"
#include "cuda_cases.h"
#include "exchange_fixture.h"

namespace geocomm::collective {
namespace {

using codec::DeviceBytes;
using codec::kInf;
using namespace testing;

// In what the device's part of an operation differs.
struct FeedbackCase {
  std::vector<int> sites = {1, 1};
  Way way = Way::BroadcastAll;
  std::string_view codec = "balanced";
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Avg;
  bool has_scale = false;
  bool replaces = false;

  std::string name() const {
    return core::str(codec, ", sites ", sites.size(), ", ", name_of(way), ", ", core::to_string(dtype),
                     has_scale ? ", scaled" : "", replaces ? ", in place" : "");
  }
};

std::span<float> floats_of(const DeviceBytes& bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.span().size() / sizeof(float)};
}

// A rank's stripes and residuals in the memory of the device, which runs as the exchange asks for it.
class DeviceRank final : public FrameMaker {
 public:
  DeviceRank(Exchange& exchange, OpContext context, ReduceOp op, std::vector<StripeData> stripes,
             bool replaces)
      : exchange_(exchange), context_(std::move(context)), op_(op), host_(std::move(stripes)) {
    stripes_ = host_;
    for (StripeData& stripe : stripes_) {
      stripe.data = keep(stripe.data);
      const FeedbackSpans& spans = stripe.feedback;
      const auto floats = [&](std::span<const float> values) {
        keep(std::as_bytes(values));
        return floats_of(*memory_.back());
      };
      stripe.feedback = {floats(spans.residual), floats(spans.next),
                         spans.scale.empty() ? std::span<float>{} : floats(spans.scale)};
    }
    feedback_.replaces = replaces;
  }

  Status reduce() {
    auto frames = exchange_.plan_frames(context_, op_, stripes_, pool_, groups_of(2400));
    GEOCOMM_RETURN_IF_ERROR(frames.status());
    const std::shared_ptr<const FramePlan>& plan = frames->plan;
    feedback_.decay = context_.caller->decay;
    std::vector<std::span<std::byte>> data;
    const std::size_t size = core::size_of(context_.dtype);
    for (const FrameChunk& chunk : plan->chunks) {
      const StripeData& stripe = stripes_[chunk.stripe];
      data.push_back(stripe.data.subspan(chunk.range.begin * size, chunk.range.size() * size));
      feedback_.chunks.push_back(stripe.feedback.part(chunk.range.begin, chunk.range.size()));
    }
    device_ = std::make_unique<cuda::BatchedReduction>(plan, context_.dtype, std::move(data), feedback_);
    keep(Bytes(device_->device_bytes()));
    std::byte* const device = memory_.back()->data();
    keep(Bytes(device_->pinned_bytes()));
    GEOCOMM_RETURN_IF_ERROR(device_->take_memory(device, memory_.back()->data()));
    groups_ = plan->groups;
    EXPECT_GT(groups_, 1u);
    const Status status = frames->run(*this);
    if (status.is_ok()) device_->exchanged();
    GEOCOMM_RETURN_IF_ERROR(wait_for_results(groups_, context_.deadline));
    GEOCOMM_RETURN_IF_ERROR(device_->enqueue_results(nullptr));
    GEOCOMM_RETURN_IF_ERROR(status);
    for (std::size_t s = 0; s < host_.size(); ++s) {
      std::ranges::copy(stripes_[s].data, host_[s].data.begin());
      const FeedbackSpans& got = stripes_[s].feedback;
      std::ranges::copy(feedback_.replaces ? got.residual : got.next, host_[s].feedback.next.begin());
    }
    return device_->verdict();
  }

  FeedbackReport report() const { return device_->report(); }
  bool committed() const { return device_->committed(); }

  Status wait_for_contributions(std::uint32_t groups, Deadline) override {
    return device_->enqueue_contributions(groups - 1, nullptr);
  }
  void contributions_arrived(std::uint32_t groups) override { device_->arrived(groups); }
  Status wait_for_results(std::uint32_t groups, Deadline) override {
    while (summed_ < groups) GEOCOMM_RETURN_IF_ERROR(device_->enqueue_sums(summed_++, nullptr));
    return Status::ok();
  }

 private:
  std::span<std::byte> keep(std::span<const std::byte> bytes) {
    memory_.push_back(std::make_unique<DeviceBytes>(bytes));
    return memory_.back()->span();
  }

  Exchange& exchange_;
  const OpContext context_;
  const ReduceOp op_;
  std::vector<StripeData> host_;
  std::vector<StripeData> stripes_;
  std::vector<std::unique_ptr<DeviceBytes>> memory_;
  core::BufferPool pool_;
  cuda::DeviceFeedback feedback_;
  std::unique_ptr<cuda::BatchedReduction> device_;
  std::uint32_t groups_ = 0;
  std::uint32_t summed_ = 0;  // of them
};

constexpr std::size_t kElements = 2501;

// A group and the residuals of one tensor, site by site; on a device rank 0 alone.
class FeedbackRun {
 public:
  FeedbackRun(const FeedbackCase& test, bool on_device)
      : test_(test),
        on_device_(on_device),
        group_(test.sites,
               [&](int, ExchangeConfig& config) {
                 const auto sites = static_cast<std::size_t>(config.topology.site_count());
                 config.min_compress_bytes = 0;
                 config.policy = policy_of({}, links_for(test.way, sites));
                 config.chunk_bytes = 4096;
               }),
        residuals_(test.sites.size(), std::vector<float>(kElements)),
        reports_(static_cast<std::size_t>(group_.size())) {
    for (std::size_t i = 0; test.has_scale && i < kElements; ++i) {
      scale_.push_back(std::exp2(static_cast<float>(i % 17) - 8) * 1.25f);
    }
  }

  // The results of all sites; residuals become the new ones where that is `committed`.
  std::vector<Bytes> all_reduce(std::uint64_t seq, bool is_finite) {
    SiteVectors data(group_.topology(0), test_.dtype, kElements, seq);
    if (!is_finite) set_value(test_.dtype, data.inputs()[1], kElements / 2, static_cast<double>(kInf));
    data.reset_outputs();
    auto next = std::vector(residuals_.size(), std::vector<float>(kElements));
    expect_all_ok(group_.run([&](int rank) {
      const auto site = static_cast<std::size_t>(group_.topology(0).site_of(rank));
      auto stripes = data.stripes(rank);
      for (StripeData& stripe : stripes) {
        const FeedbackSpans all{residuals_[site], next[site], scale_};
        stripe.feedback = all.part(stripe.stripe.range.begin, stripe.stripe.range.size());
      }
      OpContext context = context_of(OpKind::AllReduce, seq, test_.dtype, kElements, Deadline::after(600s));
      FeedbackReport& report = reports_[static_cast<std::size_t>(rank)];
      context.caller = {spec_of(test_.codec), 0.9f, &report};
      if (rank > 0 || !on_device_) return group_.exchange(rank).reduce(context, test_.op, stripes);
      DeviceRank device(group_.exchange(rank), context, test_.op, stripes, test_.replaces);
      GEOCOMM_RETURN_IF_ERROR(device.reduce());
      const std::uint64_t wire = report.wire_bytes;
      report = device.report();
      report.wire_bytes = wire;
      EXPECT_EQ(device.committed(), is_finite);
      // As it was: the host's ranks, below, do not commit either.
      EXPECT_EQ(next[site] == residuals_[site], !is_finite);
      return Status::ok();
    }));
    if (is_finite) residuals_ = next;
    return data.outputs();
  }

  const std::vector<std::vector<float>>& residuals() const { return residuals_; }
  const std::vector<FeedbackReport>& reports() const { return reports_; }

 private:
  const FeedbackCase test_;
  const bool on_device_;
  ExchangeGroup group_;
  std::vector<float> scale_;
  std::vector<std::vector<float>> residuals_;
  std::vector<FeedbackReport> reports_;
};

void expect_same_square(double got, double expected) {
  if (std::isfinite(expected)) {
    EXPECT_NEAR(got, expected, 1e-12 * expected);  // the same terms, in another order
  } else {
    EXPECT_FALSE(std::isfinite(got));
  }
}

void expect_bits_of_host(const FeedbackCase& test) {
  SCOPED_TRACE(test.name());
  FeedbackRun host(test, false);
  FeedbackRun device(test, true);
  for (std::uint64_t seq = 1; seq <= 3; ++seq) {
    const bool is_finite = seq != 2;
    SCOPED_TRACE(core::str("operation ", seq));
    const auto expected = host.all_reduce(seq, is_finite);
    const auto got = device.all_reduce(seq, is_finite);
    for (std::size_t site = 0; site < expected.size(); ++site) {
      ASSERT_TRUE(got[site] == expected[site]) << "result of site " << site;
      ASSERT_TRUE(device.residuals()[site] == host.residuals()[site]) << "residual of site " << site;
    }
    for (std::size_t rank = 0; rank < host.reports().size(); ++rank) {
      SCOPED_TRACE(core::str("report of rank ", rank));
      const FeedbackReport& theirs = host.reports()[rank];
      const FeedbackReport& ours = device.reports()[rank];
      expect_same_square(ours.input_square, theirs.input_square);
      expect_same_square(ours.residual_square, theirs.residual_square);
      expect_same_square(ours.scaled_square, theirs.scaled_square);
      expect_same_square(ours.result_square, theirs.result_square);
      EXPECT_EQ(ours.wire_bytes, theirs.wire_bytes);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

class CudaFeedback : public ::testing::TestWithParam<Way> {};

TEST_P(CudaFeedback, test_results_and_residuals_have_the_bits_of_the_host) {
  const std::vector<int> sites(GetParam() == Way::BroadcastAll ? 2 : 3, 1);
  for (const std::string_view codec : {"balanced", "small", "int8", "int4:round=stochastic", "int8+huffman",
                                       "fp16", "fp16+huffman", "deadzone", "tiny", "loco", "bit1"}) {
    expect_bits_of_host({.sites = sites, .way = GetParam(), .codec = codec});
  }
}

TEST_P(CudaFeedback, test_scales_dtypes_and_reductions_have_the_bits_of_the_host) {
  for (const DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    for (const bool has_scale : {false, true}) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Avg}) {
        const bool replaces = (op == ReduceOp::Sum) == has_scale;
        expect_bits_of_host({{1, 2, 1}, GetParam(), "balanced", dtype, op, has_scale, replaces});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Flows, CudaFeedback, ::testing::Values(Way::BroadcastAll, Way::EqualOwners),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace geocomm::collective
