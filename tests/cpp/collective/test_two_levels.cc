// Reductions by regions: what crosses between two regions, and when the model takes them.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "collective/layout/reduce_plan.h"
#include "collective/sums/reduction.h"
#include "exchange_fixture.h"

namespace geocomm::collective {
namespace {

using namespace testing;

constexpr std::size_t kRegionElements = 50'000;

// `regions` of `members` sites each: 10 Gbit/s and 2 ms inside, 1 Gbit/s and 80 ms between.
LinkMatrix links_of_regions(std::size_t regions, std::size_t members) {
  const std::size_t sites = regions * members;
  LinkMatrix links = LinkMatrix::uniform(sites, 1.25e8, 0.04);
  for (std::size_t site = 0; site < sites; ++site) {
    links.regions.push_back(static_cast<std::uint32_t>(site / members));
  }
  for (std::size_t from = 0; from < sites; ++from) {
    for (std::size_t to = 0; to < sites; ++to) {
      if (from == to || links.crosses(from, to)) continue;
      links.bytes_per_s[from * sites + to] = 1.25e9;
      links.one_way_s[from * sites + to] = 0.001;
    }
  }
  return links;
}

LinkMatrix priced(LinkMatrix links, double dollars = 2e-11) {
  links.dollars_per_byte.assign(links.sites, dollars);
  return links;
}

// Parts of a site's data that all sites together send to other regions.
double between(const LinkMatrix& links, const ReduceScheme& scheme) {
  const std::vector<double> loads = scheme.link_loads(links.sites);
  double sum = 0;
  for (std::size_t from = 0; from < links.sites; ++from) {
    for (std::size_t to = 0; to < links.sites; ++to) {
      if (links.crosses(from, to)) sum += loads[from * links.sites + to];
    }
  }
  return sum;
}

LinkMatrix without_regions(LinkMatrix links) {
  links.regions.clear();
  return links;
}

TEST(TwoLevels, four_regions_of_eight_sites_send_an_eighth_between_them) {
  const LinkMatrix links = links_of_regions(4, 8);
  const CostModel model = CostModel::create(links).value();
  const CostModel one_level = CostModel::create(without_regions(links)).value();
  ASSERT_TRUE(model.choose(1e9).has_two_levels());
  EXPECT_NEAR(between(links, model.choose(1e9)), 6.0, 1e-3);  // a sum of three regions, and three results
  EXPECT_NEAR(between(links, one_level.choose(1e9)), 48.0, 1e-2);
}

TEST(TwoLevels, are_taken_where_far_links_bound_and_left_where_delays_do) {
  const LinkMatrix links = links_of_regions(2, 4);
  const CostModel model = CostModel::create(links).value();
  EXPECT_FALSE(model.choose(1e4).has_two_levels());
  EXPECT_TRUE(model.choose(1e9).has_two_levels());
  EXPECT_LT(model.seconds(1e9), 0.9 * CostModel::create(without_regions(links)).value().seconds(1e9));
  // Where near links are as slow, nothing is won, and a sum would be coded once more.
  LinkMatrix alike = links;
  std::ranges::fill(alike.bytes_per_s, 1.25e8);
  EXPECT_FALSE(CostModel::create(alike).value().choose(1e9).has_two_levels());
}

TEST(TwoLevels, prices_count_for_what_is_mostly_bytes) {
  LinkMatrix links = links_of_regions(2, 2);
  // The site's own line is the bound, so that two levels save no time.
  links.up_bytes_per_s.assign(links.sites, 1e7);
  EXPECT_FALSE(CostModel::create(links).value().choose(1e8).has_two_levels());
  const CostModel model = CostModel::create(priced(links)).value();
  EXPECT_TRUE(model.choose(1e8).has_two_levels());
  EXPECT_FALSE(model.choose(1e3).has_two_levels());
  EXPECT_DOUBLE_EQ(model.choose(1e8).dollars, 2e-11 * between(links, model.choose(1e8)));
  EXPECT_FALSE(CostModel::create(priced(links, 0.0)).value().choose(1e8).has_two_levels());
  EXPECT_FALSE(CostModel::create(priced(without_regions(links))).value().choose(1e8).has_two_levels());
}

TEST(TwoLevels, owners_of_a_region_have_different_heads_elsewhere) {
  const LinkMatrix links = links_of_regions(2, 4);
  const RelayTurns turns = relays_by_region(links);
  ASSERT_EQ(turns.count(), 4u);
  const RelayPaths& paths = turns.at(0);
  for (std::size_t owner = 0; owner < links.sites; ++owner) {
    std::size_t heads = 0;
    for (std::size_t site = 0; site < links.sites; ++site) {
      heads += paths.is_adder(owner, site);
      const int over = paths.via(owner, site);
      ASSERT_EQ(over >= 0, links.crosses(owner, site) && !paths.is_adder(owner, site));
      if (over < 0) continue;
      EXPECT_TRUE(paths.is_adder(owner, static_cast<std::size_t>(over)));
      EXPECT_FALSE(links.crosses(site, static_cast<std::size_t>(over)));
    }
    EXPECT_EQ(heads, 1u);
  }
  // Each link between the regions carries at most what one owner's chunks need, there and back; over all
  // turns a quarter of what those of both its ends do.
  for (std::size_t from = 0; from < 4; ++from) {
    for (std::size_t to = 4; to < 8; ++to) {
      const std::vector<double> load = owner_load(paths, links.sites, from, to);
      EXPECT_LE(std::accumulate(load.begin(), load.end(), 0.0), 1.0);
      std::vector<double> of_ends(links.sites, 0.0);
      of_ends[from] = of_ends[to] = 0.25;
      EXPECT_EQ(owner_load(turns, links.sites, from, to), of_ends);
    }
  }
}

TEST(TwoLevels, loads_are_those_of_the_frames_that_the_plan_sends) {
  const LinkMatrix links = links_of_regions(3, 2);
  const RelayTurns relays = relays_by_region(links);
  ASSERT_EQ(relays.count(), 2u);
  constexpr std::size_t kChunks = 6;
  const auto topologies = topologies_of(std::vector<int>(links.sites, 1), false);
  for (std::size_t owner = 0; owner < links.sites; ++owner) {
    for (const bool all : {true, false}) {
      ReduceScheme scheme{
          .shares = std::vector<std::uint32_t>(links.sites, 0), .lines = {}, .relays = relays};
      scheme.shares[owner] = kShareParts;
      std::vector<bool> receives(links.sites, all);
      receives[owner] = true;
      for (const Topology& topology : topologies) {
        const std::vector<PlannedStripe> stripes = {{stripes_of(topology, kChunks * 256).front(), receives}};
        std::vector<double> sent(links.sites, 0.0);
        const ReducePlan plan = plan_reduce(topology, stripes, {.chunk_bytes = 1024, .scheme = &scheme});
        ASSERT_EQ(plan.chunks.size(), kChunks);
        for (const PeerPlan& peer : plan.peers) {
          sent[static_cast<std::size_t>(peer.rank)] += static_cast<double>(peer.sends.size());
        }
        for (std::size_t to = 0; to < links.sites; ++to) {
          const auto from = static_cast<std::size_t>(topology.site());
          if (from == to) continue;
          EXPECT_EQ(sent[to], kChunks * owner_load(relays, links.sites, from, to, all)[owner]) << from << to;
        }
      }
    }
  }
}

TEST(TwoLevels, reduce_scatters_and_gathers_send_once_to_each_region_over_all_links) {
  const LinkMatrix links = links_of_regions(4, 8);
  const CostModel model = CostModel::create(links).value();
  const CostModel one_level = CostModel::create(without_regions(links)).value();
  for (const auto& [pattern, parts] : {std::pair(Pattern::ReduceScatter, 1.0), {Pattern::AllGather, 32.0}}) {
    const ReduceScheme& scheme = model.choose(1e9, pattern);
    ASSERT_TRUE(scheme.relays.has_adders());
    EXPECT_EQ(scheme.has_two_levels(), pattern == Pattern::ReduceScatter);
    EXPECT_NEAR(between(links, scheme), 3.0 * parts, 1e-3);
    EXPECT_NEAR(between(links, one_level.choose(1e9, pattern)), 24.0 * parts, 1e-2);
    // Four of eight sites take turns as heads, so that a link carries a quarter.
    EXPECT_NEAR(scheme.seconds(1e9), 0.25 * one_level.choose(1e9, pattern).seconds(1e9), 0.1 * parts);
    EXPECT_FALSE(model.choose(1e3, pattern).relays.any());
  }
}

TEST(TwoLevels, impossible_regions_are_refused) {
  const auto code_of = [](std::vector<std::uint32_t> regions, std::vector<double> dollars) {
    LinkMatrix links = LinkMatrix::uniform(3, 1e8, 0.05);
    links.regions = std::move(regions);
    links.dollars_per_byte = std::move(dollars);
    return CostModel::create(links).status().code();
  };
  EXPECT_EQ(code_of({0, 1, 0}, {0.0, 1e-11, 0.0}), StatusCode::Ok);
  EXPECT_EQ(code_of({0, 1}, {}), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of({1, 0, 0}, {}), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of({0, 2, 1}, {}), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of({}, {1e-11}), StatusCode::InvalidArgument);
  EXPECT_EQ(code_of({0, 0, 1}, {-1.0, 0.0, 0.0}), StatusCode::InvalidArgument);
}

ExchangeGroup::Tune tune_to(std::string_view codec, bool has_regions = true, std::size_t chunk_bytes = 2048) {
  return [=](int, ExchangeConfig& config) {
    LinkMatrix links = links_for(Way::TwoLevels, static_cast<std::size_t>(config.topology.site_count()));
    config.policy = policy_of(spec_of(codec), has_regions ? links : without_regions(links));
    config.chunk_bytes = chunk_bytes;
  };
}

Status reduce_on(ExchangeGroup& group, int rank, std::uint64_t seq, SiteVectors& data,
                 std::chrono::milliseconds limit = 60s) {
  auto stripes = data.stripes(rank);
  return group.exchange(rank).reduce(
      context_of(OpKind::AllReduce, seq, DType::Float32, kRegionElements, Deadline::after(limit)),
      ReduceOp::Sum, stripes);
}

std::vector<Bytes> reduced(ExchangeGroup& group) {
  SiteVectors data(group.topology(0), DType::Float32, kRegionElements, 3);
  expect_all_ok(group.run([&](int rank) { return reduce_on(group, rank, 1, data); }));
  return data.outputs();
}

TEST(TwoLevels, a_result_is_passed_on_inside_the_other_region) {
  std::vector<double> relayed;
  for (const bool has_regions : {false, true}) {
    ExchangeGroup group({1, 1, 1, 1}, tune_to("none", has_regions));
    const std::vector<Bytes> outputs = reduced(group);
    for (const Bytes& output : outputs) EXPECT_EQ(output, outputs[0]);
    double sum = 0;
    for (int rank = 0; rank < 4; ++rank)
      sum += static_cast<double>(group.exchange(rank).stats().relayed_bytes);
    relayed.push_back(sum / static_cast<double>(4 * kRegionElements));
  }
  EXPECT_EQ(relayed[0], 0.0);
  EXPECT_NEAR(relayed[1], 1.0, 0.06);  // the result, in the owner's other region
}

TEST(TwoLevels, chunks_are_summed_in_the_same_order_whoever_owns_them) {
  std::vector<Bytes> outputs;
  for (std::size_t fast = 0; fast < 4; ++fast) {
    // Another site's lines are the fastest, so shares differ.
    ExchangeGroup group({1, 1, 1, 1}, [fast](int, ExchangeConfig& config) {
      LinkMatrix links = links_for(Way::TwoLevels, 4);
      for (std::size_t other = 0; other < 4; ++other) {
        links.bytes_per_s[fast * 4 + other] *= 3;
        links.bytes_per_s[other * 4 + fast] *= 3;
      }
      ASSERT_TRUE(CostModel::create(links).value().choose(4.0 * kRegionElements).has_two_levels());
      config.policy = policy_of(spec_of("none"), links);
      config.chunk_bytes = 2048;
    });
    outputs.push_back(reduced(group)[0]);
  }
  for (const Bytes& output : outputs) EXPECT_EQ(output, outputs[0]);
}

Bytes sum_of(const std::vector<Bytes>& inputs) {
  std::vector<const std::byte*> sources;
  for (const Bytes& input : inputs) sources.push_back(input.data());
  Bytes sum(inputs.front().size());
  reduce_elements(DType::Float32, ReduceOp::Sum, sources, sum.data(), kRegionElements, 1);
  return sum;
}

TEST(TwoLevels, regions_may_be_of_any_size_and_order) {
  using Regions = std::vector<std::uint32_t>;
  for (const Regions& regions : {Regions{0, 1, 0, 1}, Regions{0, 1, 0, 2, 1, 0}, Regions{0, 1, 1, 1, 0, 1}}) {
    LinkMatrix links = LinkMatrix::uniform(regions.size(), 1e6, 0.0);
    links.regions = regions;
    links.dollars_per_byte.assign(links.sites, 1e-9);
    for (std::size_t i = 0; i < links.bytes_per_s.size(); ++i) {
      if (!links.crosses(i / links.sites, i % links.sites)) links.bytes_per_s[i] = 1e9;
    }
    ASSERT_TRUE(CostModel::create(links).value().choose(4.0 * kRegionElements).has_two_levels());
    for (const char* codec : {"none", "int8"}) {
      ExchangeGroup group(std::vector<int>(regions.size(), 1), [&](int, ExchangeConfig& config) {
        config.policy = policy_of(spec_of(codec), links);
        config.chunk_bytes = 2048;
      });
      SiteVectors data(group.topology(0), DType::Float32, kRegionElements, 3);
      expect_all_ok(group.run([&](int rank) { return reduce_on(group, rank, 1, data); }));
      for (const Bytes& output : data.outputs()) EXPECT_EQ(output, data.outputs()[0]);
      if (codec != std::string_view("none")) continue;
      std::vector<Bytes> sums;
      for (std::uint32_t region = 0; region <= std::ranges::max(regions); ++region) {
        std::vector<Bytes> members;
        for (std::size_t site = 0; site < regions.size(); ++site) {
          if (regions[site] == region) members.push_back(data.inputs()[site]);
        }
        sums.push_back(sum_of(members));
      }
      EXPECT_EQ(data.outputs()[0], sum_of(sums));
    }
  }
}

TEST(TwoLevels, a_late_site_holds_up_all_and_nothing_else) {
  for (const int late : {0, 3}) {
    ExchangeGroup group({1, 2, 1, 1}, tune_to("int8"));
    SiteVectors data(group.topology(0), DType::Float32, kRegionElements, 3);
    expect_all_ok(group.run([&](int rank) {
      if (group.topology(rank).site() == late) std::this_thread::sleep_for(300ms);
      return reduce_on(group, rank, 1, data);
    }));
    for (const Bytes& output : data.outputs()) EXPECT_EQ(output, data.outputs()[0]);
  }
}

// By its own region alone; by the others perhaps with the site that adds up what it has for them.
TEST(TwoLevels, a_site_that_does_not_call_is_named_by_all) {
  for (int late = 0; late < 4; ++late) {
    // Few chunks, so that all but those of the late site are there in time.
    ExchangeGroup group({1, 1, 1, 1}, tune_to("none", true, std::size_t{1} << 20));
    reduced(group);
    SiteVectors data(group.topology(0), DType::Float32, kRegionElements, 4);
    const auto results = group.run(
        [&](int rank) { return rank == late ? Status::ok() : reduce_on(group, rank, 2, data, 1s); });
    const std::string name = rank_name(group.topology(0), late);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == late) continue;
      const Status& status = results[static_cast<std::size_t>(rank)];
      EXPECT_EQ(status.code(), StatusCode::Timeout) << status.to_string();
      if (rank / 2 == late / 2) {
        EXPECT_EQ(status.peer(), name) << status.to_string();
      } else {
        EXPECT_NE(status.peer().find(name), std::string::npos) << status.to_string();
        EXPECT_EQ(status.peer().find(rank_name(group.topology(0), rank ^ 1)), std::string::npos);
      }
    }
  }
}

TEST(TwoLevels, a_lost_site_ends_all_that_await_it) {
  for (int lost = 0; lost < 4; ++lost) {
    ExchangeGroup group({1, 1, 1, 1}, tune_to("none"));
    reduced(group);
    SiteVectors data(group.topology(0), DType::Float32, kRegionElements, 4);
    const auto results = group.run([&](int rank) {
      if (rank == lost) {
        group.at(rank).endpoint->abort(Status(StatusCode::Aborted, "killed"));
        return Status::ok();
      }
      Status status = reduce_on(group, rank, 2, data);
      for (int other = 0; other < 4; ++other) {
        if (other != rank && other != lost)
          group.exchange(other).abort(status);  // as the failure notice does
      }
      return status;
    });
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == lost) continue;
      const Status& status = results[static_cast<std::size_t>(rank)];
      EXPECT_EQ(status.code(), StatusCode::PeerLost) << status.to_string();
      EXPECT_EQ(status.peer(), rank_name(group.topology(0), lost)) << status.to_string();
    }
  }
}

TEST(TwoLevels, memory_is_given_back) {
  ExchangeGroup group({1, 1, 1, 1}, tune_to("int8"));
  reduced(group);
  for (int rank = 0; rank < 4; ++rank) {
    // Until the peers have acknowledged what was sent.
    const core::BufferPool& pool = *group.at(rank).buffers;
    for (int i = 0; i < 1000 && pool.usage().out_bytes > 0; ++i) std::this_thread::sleep_for(10ms);
    EXPECT_EQ(pool.usage().out_bytes, 0u);
  }
}

// Sums of regions are the host's business.
TEST(TwoLevels, have_no_frames_for_a_device) {
  for (const bool has_regions : {false, true}) {
    ExchangeGroup group({1, 1, 1, 1}, tune_to("int8", has_regions));
    SiteVectors data(group.topology(0), DType::Float32, kRegionElements, 3);
    const auto stripes = data.stripes(0);
    const auto context = context_of(OpKind::AllReduce, 1, DType::Float32, kRegionElements);
    const auto plan = group.exchange(0).plan_frames(context, ReduceOp::Sum, stripes, *group.at(0).buffers);
    EXPECT_EQ(plan.status().code(), has_regions ? StatusCode::Unsupported : StatusCode::Ok);
  }
}

}  // namespace
}  // namespace geocomm::collective
