// Reductions of data that comes, and goes back, in pieces beside the exchange.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "exchange_fixture.h"

namespace geocomm::collective {
namespace {

using namespace testing;

// A device's copies: data comes piece by piece, the next one only once somebody waits for it, and is not
// there before.
class SlowCopies final : public DataFlow {
 public:
  SlowCopies(std::vector<StripeData>& stripes, std::size_t piece) : stripes_(stripes), piece_(piece) {
    for (StripeData& stripe : stripes_) {
      given_.insert(given_.end(), stripe.data.begin(), stripe.data.end());
      std::ranges::fill(stripe.data, std::byte{0xFF});  // NaN
    }
    back_.resize(given_.size());
    is_back_.resize(given_.size());
  }

  core::Result<std::size_t> wait_for(std::size_t bytes, Deadline) override {
    EXPECT_LE(bytes, given_.size());
    EXPECT_GT(bytes, there_) << "asked for what is there";
    const std::size_t until = std::min(given_.size(), (bytes + piece_ - 1) / piece_ * piece_);
    for_each_part(there_, until, [&](std::size_t at, std::span<std::byte> data) {
      std::copy_n(given_.begin() + static_cast<std::ptrdiff_t>(at), data.size(), data.begin());
    });
    there_ = until;
    return there_;
  }
  void done(std::size_t begin, std::size_t end) override {
    std::lock_guard lock(mutex_);
    for_each_part(begin, end, [&](std::size_t at, std::span<std::byte> data) {
      std::ranges::copy(data, back_.begin() + static_cast<std::ptrdiff_t>(at));
    });
    for (std::size_t i = begin; i < end; ++i) {
      EXPECT_FALSE(is_back_[i]);
      is_back_[i] = true;
    }
  }
  // All went back, and was the result by then.
  void expect_complete() {
    EXPECT_TRUE(std::ranges::all_of(is_back_, [](bool is_back) { return is_back; }));
    for_each_part(0, given_.size(), [&](std::size_t at, std::span<std::byte> data) {
      EXPECT_TRUE(std::ranges::equal(data, std::span(back_).subspan(at, data.size())));
    });
  }

 private:
  template <typename F>
  void for_each_part(std::size_t begin, std::size_t end, F&& use) {
    std::size_t at = 0;
    for (StripeData& stripe : stripes_) {
      const std::size_t from = std::max(begin, at);
      const std::size_t to = std::min(end, at + stripe.data.size());
      if (from < to) use(from, stripe.data.subspan(from - at, to - from));
      at += stripe.data.size();
    }
  }

  std::vector<StripeData>& stripes_;
  const std::size_t piece_;
  Bytes given_;
  std::size_t there_ = 0;
  std::mutex mutex_;  // guards all below
  Bytes back_;
  std::vector<bool> is_back_;
};

class ReduceFlow : public ::testing::TestWithParam<Way> {};

TEST_P(ReduceFlow, data_that_comes_in_pieces_gives_the_bits_of_data_that_is_there) {
  for (const std::vector<int>& sizes :
       std::vector<std::vector<int>>{{1}, {1, 1}, {2, 3}, {1, 2, 1}, {1, 1, 2, 1}}) {
    for (const char* codec : {"none", "lossless", "int8"}) {
      ExchangeGroup group(sizes, [&](int, ExchangeConfig& config) {
        config.policy = policy_of(spec_of(codec), links_for(GetParam(), sizes.size()));
        config.chunk_bytes = 4096;
      });
      std::vector<Bytes> expected;
      for (const bool flows : {false, true}) {
        SiteVectors data(group.topology(0), DType::Float32, 30001, 3);
        expect_all_ok(group.run([&](int rank) {
          auto stripes = data.stripes(rank);
          auto context = context_of(OpKind::AllReduce, flows ? 2 : 1, DType::Float32, data.elements());
          if (!flows) return group.exchange(rank).reduce(context, ReduceOp::Avg, stripes);
          SlowCopies copies(stripes, 10000);
          context.flow = &copies;
          const Status status = group.exchange(rank).reduce(context, ReduceOp::Avg, stripes);
          if (status.is_ok()) copies.expect_complete();
          return status;
        }));
        if (!flows) expected = data.outputs();
        EXPECT_TRUE(data.outputs() == expected) << codec << ' ' << sizes.size();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Flows, ReduceFlow,
                         ::testing::Values(Way::BroadcastAll, Way::EqualOwners, Way::RelayedOwners,
                                           Way::TwoLevels),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace geocomm::collective
