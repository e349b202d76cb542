// Reduce-scatters and reduces by regions: a sum crosses in place of what each site of a region has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "collective/sums/reduction.h"
#include "exchange_fixture.h"

namespace geocomm::collective {
namespace {

using namespace testing;

constexpr std::uint64_t kShard = 20'000;
constexpr std::size_t kShardBytes = kShard * 4;

// Slow links between regions, which are of any size and order, and a price: where a region has one site,
// whose links carry as much either way, no time is won.
LinkMatrix links_between(std::vector<std::uint32_t> regions) {
  LinkMatrix links = LinkMatrix::uniform(regions.size(), 1e6, 0.0);
  links.regions = std::move(regions);
  links.dollars_per_byte.assign(links.sites, 1e-9);
  for (std::size_t i = 0; i < links.bytes_per_s.size(); ++i) {
    if (!links.crosses(i / links.sites, i % links.sites)) links.bytes_per_s[i] = 1e9;
  }
  return links;
}

// Of sites with one rank each.
ExchangeGroup::Tune tune_to(std::string_view codec, LinkMatrix links, bool has_regions = true) {
  if (!has_regions) links.regions.clear();
  return [=](int, ExchangeConfig& config) {
    config.policy = policy_of(spec_of(codec), links);
    config.chunk_bytes = 4096;
  };
}

// What the sites put in: a shard for each.
std::vector<Bytes> made_by_sites(std::size_t sites, DType dtype) {
  std::vector<Bytes> inputs;
  for (std::size_t site = 0; site < sites; ++site) {
    inputs.push_back(random_elements(dtype, kShard * sites, 7 + site));
  }
  return inputs;
}

Status scatter_on(ExchangeGroup& group, int rank, std::uint64_t seq, DType dtype, const Bytes& input,
                  Bytes& block, std::chrono::milliseconds limit = 60s) {
  const Topology& topology = group.topology(rank);
  const ReduceScatterLayout layout = reduce_scatter_layout(topology, kShard);
  block.assign(layout.block * 4, std::byte{0});
  for (const CopyRun& run : layout.pack) {
    std::memcpy(block.data() + run.to * 4, input.data() + run.from * 4, run.count * 4);
  }
  std::vector<StripeData> stripes = scatter_stripes(topology, layout, block);
  const auto elements = kShard * static_cast<std::uint64_t>(topology.size());
  return group.exchange(rank).reduce(
      context_of(OpKind::ReduceScatter, seq, dtype, elements, Deadline::after(limit)), ReduceOp::Sum,
      stripes);
}

// The shards of all sites, in their order.
Bytes scattered(ExchangeGroup& group, DType dtype, const std::vector<Bytes>& inputs) {
  std::vector<Bytes> blocks(inputs.size());
  expect_all_ok(group.run([&](int rank) {
    const auto site = static_cast<std::size_t>(rank);
    return scatter_on(group, rank, 1, dtype, inputs[site], blocks[site]);
  }));
  Bytes all;
  for (const Bytes& block : blocks) all.insert(all.end(), block.begin(), block.begin() + kShardBytes);
  return all;
}

Bytes sum_of(const std::vector<Bytes>& inputs, DType dtype) {
  std::vector<const std::byte*> sources;
  for (const Bytes& input : inputs) sources.push_back(input.data());
  Bytes sum(inputs.front().size());
  reduce_elements(dtype, ReduceOp::Sum, sources, sum.data(), sum.size() / 4, 1);
  return sum;
}

// Each region's in order of its sites, then the regions'.
Bytes sum_by_regions(const std::vector<Bytes>& inputs, const LinkMatrix& links, DType dtype) {
  std::vector<Bytes> sums;
  for (std::uint32_t region = 0; region <= std::ranges::max(links.regions); ++region) {
    std::vector<Bytes> members;
    for (std::size_t site = 0; site < inputs.size(); ++site) {
      if (links.regions[site] == region) members.push_back(inputs[site]);
    }
    sums.push_back(sum_of(members, dtype));
  }
  return sum_of(sums, dtype);
}

std::uint64_t wire_bytes(ExchangeGroup& group) {
  std::uint64_t sum = 0;
  for (int rank = 0; rank < group.size(); ++rank) sum += group.exchange(rank).stats().wire_bytes_sent;
  return sum;
}

using Regions = std::vector<std::uint32_t>;

TEST(TwoLevelScatters, exact_shards_are_the_sums_of_regions_whose_order_one_rule_says) {
  for (const Regions& regions : {Regions{0, 0, 1, 1}, Regions{0, 1, 0, 2, 1, 0}, Regions{0, 1, 1, 1, 0, 1}}) {
    const LinkMatrix links = links_between(regions);
    for (const DType dtype : {DType::Float32, DType::Int32}) {
      const std::vector<Bytes> inputs = made_by_sites(regions.size(), dtype);
      const Bytes expected = sum_by_regions(inputs, links, dtype);
      for (const char* codec : {"none", "lossless"}) {
        ExchangeGroup group(std::vector<int>(regions.size(), 1), tune_to(codec, links));
        EXPECT_EQ(scattered(group, dtype, inputs), expected) << codec;
      }
      if (dtype == DType::Float32) continue;
      ExchangeGroup one_level(std::vector<int>(regions.size(), 1), tune_to("none", links, false));
      EXPECT_EQ(scattered(one_level, dtype, inputs), expected);
    }
  }
}

TEST(TwoLevelScatters, lossy_shards_are_near_the_sum_and_a_sum_is_sent_in_place_of_two_frames) {
  const LinkMatrix links = links_between({0, 0, 1, 1});
  const std::vector<Bytes> inputs = made_by_sites(4, DType::Float32);
  const Bytes exact = sum_of(inputs, DType::Float32);
  std::vector<double> sent;
  for (const bool has_regions : {true, false}) {
    ExchangeGroup group({1, 1, 1, 1}, tune_to("int8", links, has_regions));
    const Bytes sums = scattered(group, DType::Float32, inputs);
    double square = 0.0;
    double error = 0.0;
    for (std::size_t i = 0; i < 4 * kShard; ++i) {
      const double value = value_at(DType::Float32, exact, i);
      const double lost = value_at(DType::Float32, sums, i) - value;
      square += value * value;
      error += lost * lost;
    }
    EXPECT_LT(error, 3e-4 * square);
    EXPECT_GT(error, 0.0);
    sent.push_back(static_cast<double>(wire_bytes(group)));
  }
  // To each owner three frames either way: two of them inside regions in place of one.
  EXPECT_NEAR(sent[0] / sent[1], 1.0, 0.02);
}

TEST(TwoLevelScatters, a_reduce_to_one_site_goes_by_regions_too) {
  const LinkMatrix links = links_between({0, 1, 1, 0});
  for (std::size_t root = 0; root < 4; ++root) {
    ExchangeGroup group({1, 1, 1, 1}, tune_to("none", links));
    SiteVectors data(group.topology(0), DType::Float32, kShard, 3);
    std::vector<bool> receives(4, false);
    receives[root] = true;
    expect_all_ok(group.run([&](int rank) {
      auto stripes = data.stripes(rank, receives);
      return group.exchange(rank).reduce(context_of(OpKind::Reduce, 1, DType::Float32, kShard), ReduceOp::Sum,
                                         stripes);
    }));
    EXPECT_EQ(data.outputs()[root], sum_by_regions(data.inputs(), links, DType::Float32));
    for (std::size_t site = 0; site < 4; ++site) {
      if (site == root) continue;
      EXPECT_EQ(data.outputs()[site], data.inputs()[site]);
    }
  }
}

TEST(TwoLevelScatters, a_site_that_does_not_call_is_named_by_all) {
  for (int late = 0; late < 4; ++late) {
    ExchangeGroup group({1, 1, 1, 1}, tune_to("none", links_between({0, 0, 1, 1})));
    const std::vector<Bytes> inputs = made_by_sites(4, DType::Float32);
    scattered(group, DType::Float32, inputs);
    std::vector<Bytes> blocks(4);
    const auto results = group.run([&](int rank) {
      const auto site = static_cast<std::size_t>(rank);
      return rank == late ? Status::ok()
                          : scatter_on(group, rank, 2, DType::Float32, inputs[site], blocks[site], 1s);
    });
    const std::string name = rank_name(group.topology(0), late);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == late) continue;
      const Status& status = results[static_cast<std::size_t>(rank)];
      EXPECT_EQ(status.code(), StatusCode::Timeout) << status.to_string();
      EXPECT_NE(status.peer().find(name), std::string::npos) << status.to_string();
      if (rank / 2 == late / 2) continue;
      EXPECT_EQ(status.peer().find(rank_name(group.topology(0), rank ^ 1)), std::string::npos)
          << status.to_string();
    }
  }
}

// Sums of regions are the host's business.
TEST(TwoLevelScatters, have_no_frames_for_a_device) {
  for (const bool has_regions : {false, true}) {
    ExchangeGroup group({1, 1, 1, 1}, tune_to("int8", links_between({0, 0, 1, 1}), has_regions));
    SiteVectors data(group.topology(0), DType::Float32, kShard, 3);
    const auto stripes = data.stripes(0, {true, false, false, false});
    const auto context = context_of(OpKind::ReduceScatter, 1, DType::Float32, 4 * kShard);
    const auto plan = group.exchange(0).plan_frames(context, ReduceOp::Sum, stripes, *group.at(0).buffers);
    EXPECT_EQ(plan.status().code(), has_regions ? StatusCode::Unsupported : StatusCode::Ok);
  }
}

}  // namespace
}  // namespace geocomm::collective
