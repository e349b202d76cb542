#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "collective/layout/reduce_plan.h"
#include "link_shapes.h"
#include "topology_shapes.h"

namespace geocomm::collective {
namespace {

std::vector<PlannedStripe> stripes_for(const Topology& topology, std::uint64_t elements,
                                       const std::vector<bool>& receives) {
  std::vector<PlannedStripe> mine;
  for (const Stripe& stripe : stripes_of(topology, elements)) {
    if (stripe.rank_of_site[static_cast<std::size_t>(topology.site())] == topology.rank()) {
      mine.push_back({stripe, receives});
    }
  }
  return mine;
}

const PeerPlan* peer_of(const ReducePlan& plan, int rank) {
  for (const PeerPlan& peer : plan.peers) {
    if (peer.rank == rank) return &peer;
  }
  return nullptr;
}

// Both ends of every pair number the same frames alike.
void check_plans(const std::vector<int>& sizes, std::uint64_t elements, const std::vector<bool>& receives,
                 const PlanSettings& settings) {
  const auto topologies = testing::topologies_of(sizes, true);
  std::vector<std::vector<PlannedStripe>> stripes;
  std::vector<ReducePlan> plans;
  for (const Topology& topology : topologies) {
    stripes.push_back(stripes_for(topology, elements, receives));
    plans.push_back(plan_reduce(topology, stripes.back(), settings));
  }
  const auto place = [&](std::size_t rank, const Message& message) {
    const PlannedChunk& chunk = plans[rank].chunks[message.chunk];
    const std::uint64_t begin = stripes[rank][chunk.stripe].stripe.range.begin;
    return std::tuple(begin + chunk.range.begin, chunk.range.size(), chunk.flow, chunk.reducer, message.kind,
                      message.origin, message.delivers);
  };
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    std::vector<std::uint64_t> next(stripes[rank].size(), 0);
    for (const PlannedChunk& chunk : plans[rank].chunks) {
      ASSERT_EQ(chunk.range.begin, next[chunk.stripe]);
      ASSERT_LE(chunk.range.size(),
                std::max<std::uint64_t>(settings.chunk_bytes / settings.element_bytes, 256));
      next[chunk.stripe] = chunk.range.end;
    }
    for (std::size_t l = 0; l < next.size(); ++l) ASSERT_EQ(next[l], stripes[rank][l].stripe.range.size());
    for (const PeerPlan& peer : plans[rank].peers) {
      const auto other = static_cast<std::size_t>(peer.rank);
      const PeerPlan* back = peer_of(plans[other], static_cast<int>(rank));
      ASSERT_NE(back, nullptr);
      ASSERT_EQ(peer.sends.size(), back->receives.size());
      for (std::size_t i = 0; i < peer.sends.size(); ++i) {
        ASSERT_EQ(place(rank, peer.sends[i]), place(other, back->receives[i]));
      }
    }
  }
}

// Schemes by number of sites: the first and the last site own different shares, one in the middle none.
ReduceScheme broadcast() {
  return {};
}
ReduceScheme equal_owners(std::size_t sites) {
  const auto share = kShareParts / static_cast<std::uint32_t>(sites);
  return {.shares = std::vector<std::uint32_t>(sites, share), .lines = {}};
}
ReduceScheme unequal_owners(std::size_t sites) {
  std::vector<std::uint32_t> shares(sites, kShareParts / 8);
  if (sites > 2) shares[1] = 0;
  shares[0] = 0;
  shares[0] = kShareParts - std::accumulate(shares.begin(), shares.end(), 0u);
  return {.shares = std::move(shares), .lines = {}};
}

// The frames that one chunk's data takes from site to site, as each rank's plan has them.
std::vector<std::tuple<int, int, Message>> hops_of(std::size_t sites, const std::vector<bool>& receives,
                                                   const PlanSettings& settings) {
  std::vector<std::tuple<int, int, Message>> hops;
  for (const Topology& topology : testing::topologies_of(std::vector<int>(sites, 1), false)) {
    const ReducePlan plan = plan_reduce(topology, stripes_for(topology, 100, receives), settings);
    EXPECT_EQ(plan.chunks.size(), 1u);
    for (const PeerPlan& peer : plan.peers) {
      for (const Message& message : peer.sends) {
        hops.emplace_back(topology.site(), topology.site_of(peer.rank), message);
      }
    }
  }
  return hops;
}

// Everybody gets what it wants, once, from its origin or from the relay between the two, which has it.
void check_hops(std::size_t sites, const std::vector<bool>& receives, const PlanSettings& settings,
                const RelayPaths& relays) {
  std::vector<std::tuple<int, int, Message>> hops = hops_of(sites, receives, settings);
  const auto deliveries = [&](int to, int origin, Message::Kind kind) {
    std::vector<int> from;
    for (const auto& [source, target, message] : hops) {
      const bool same = target == to && message.origin == origin && message.kind == kind;
      if (same && message.delivers) from.push_back(source);
    }
    return from;
  };
  for (int to = 0; to < static_cast<int>(sites); ++to) {
    for (int origin = 0; origin < static_cast<int>(sites); ++origin) {
      for (const Message::Kind kind : {Message::Kind::Contribution, Message::Kind::Result}) {
        for (const int source : deliveries(to, origin, kind)) {
          const int over = relays.via(static_cast<std::size_t>(origin), static_cast<std::size_t>(to));
          EXPECT_EQ(source, over < 0 ? origin : over);
          EXPECT_EQ(deliveries(to, origin, kind).size(), 1u);
        }
      }
    }
  }
  for (const auto& [source, target, message] : hops) {
    if (source == message.origin) continue;
    const bool has_it = std::ranges::any_of(hops, [&, at = source, &wanted = message](const auto& hop) {
      const auto& [from, to, other] = hop;
      return from == wanted.origin && to == at && other.origin == wanted.origin && other.kind == wanted.kind;
    });
    EXPECT_TRUE(has_it);
  }
}

TEST(ReducePlan, relayed_frames_travel_once_over_each_link) {
  const std::size_t sites = 4;
  const RelayPaths relays = choose_relays(testing::links_for(testing::Way::RelayedBroadcast, sites));
  ASSERT_EQ(relays.via(0, 2), 1);
  ASSERT_EQ(relays.via(3, 0), 1);
  const std::vector<bool> all(sites, true);
  ReduceScheme scheme = broadcast();
  scheme.relays = relays;
  check_hops(sites, all, {.scheme = &scheme}, relays);
  // 0 sends to 1 alone, and what it gets of 2 and 3 comes from there too.
  const auto hops = hops_of(sites, all, {.scheme = &scheme});
  EXPECT_EQ(hops.size(), sites * (sites - 1));
  EXPECT_EQ(std::ranges::count_if(hops, [](const auto& hop) { return std::get<0>(hop) == 0; }), 1);
  EXPECT_EQ(std::ranges::count_if(hops, [](const auto& hop) { return std::get<1>(hop) == 0; }), 3);
  for (std::size_t owner = 0; owner < sites; ++owner) {
    ReduceScheme owned{.shares = std::vector<std::uint32_t>(sites, 0), .lines = {}, .relays = relays};
    owned.shares[owner] = kShareParts;
    check_hops(sites, all, {.scheme = &owned}, relays);
    std::vector<bool> one(sites, false);
    one[owner] = true;
    check_hops(sites, one, {.scheme = &owned}, relays);
    EXPECT_EQ(hops_of(sites, one, {.scheme = nullptr}).size(), sites - 1);
  }
}

TEST(ReducePlan, every_shape_and_flow_is_numbered_alike_on_both_sides) {
  for (const auto& sizes : testing::all_site_sizes(4, 3)) {
    const RelayPaths relays = choose_relays(testing::links_for(testing::Way::RelayedBroadcast, sizes.size()));
    std::vector<ReduceScheme> schemes = {broadcast(), equal_owners(sizes.size()),
                                         unequal_owners(sizes.size())};
    for (std::size_t i = 0; i < 3; ++i) {
      schemes.push_back(schemes[i]);
      schemes.back().relays = relays;
    }
    if (sizes.size() == 4) {
      schemes.push_back(unequal_owners(4));
      schemes.back().relays = relays_by_region(testing::links_for(testing::Way::TwoLevels, 4));
    }
    for (const ReduceScheme& scheme : schemes) {
      const PlanSettings settings{4, 2048, &scheme};
      std::vector<bool> receives(sizes.size(), true);
      ASSERT_NO_FATAL_FAILURE(check_plans(sizes, 10'007, receives, settings));
      for (std::size_t only = 0; only < sizes.size(); ++only) {
        std::fill(receives.begin(), receives.end(), false);
        receives[only] = true;
        ASSERT_NO_FATAL_FAILURE(check_plans(sizes, 3'001, receives, settings));
      }
      std::fill(receives.begin(), receives.end(), true);
      receives[0] = sizes.size() == 1;
      ASSERT_NO_FATAL_FAILURE(check_plans(sizes, 3'001, receives, settings));
    }
  }
}

// Elements that each site owns, of one stripe.
std::vector<double> owned_parts(std::size_t sites, std::uint64_t elements, const ReduceScheme& scheme) {
  const auto topologies = testing::topologies_of(std::vector<int>(sites, 1), false);
  const auto stripes = stripes_for(topologies[0], elements, std::vector<bool>(sites, true));
  const ReducePlan plan = plan_reduce(topologies[0], stripes, {.scheme = &scheme});
  std::vector<double> owned(sites, 0.0);
  for (const PlannedChunk& chunk : plan.chunks) {
    EXPECT_EQ(chunk.flow, Flow::OwnerReduces);
    EXPECT_LE(chunk.range.size() * 4 + 64, std::size_t{1} << 20);
    owned[static_cast<std::size_t>(chunk.reducer)] +=
        static_cast<double>(chunk.range.size()) / static_cast<double>(elements);
  }
  return owned;
}

TEST(ReducePlan, owners_get_their_shares) {
  for (const std::uint64_t elements : {1u << 20, 1u << 21, 1u << 22, 1u << 24}) {
    for (const double part : owned_parts(3, elements, equal_owners(3))) EXPECT_NEAR(part, 1.0 / 3, 0.02);
    const auto parts = owned_parts(4, elements, unequal_owners(4));
    EXPECT_NEAR(parts[0], 0.75, 0.02);
    EXPECT_EQ(parts[1], 0.0);
    EXPECT_NEAR(parts[2], 0.125, 0.02);
    EXPECT_NEAR(parts[3], 0.125, 0.02);
    const ReduceScheme odd{.shares = {30'000, 20'000, 10'000, 5'536}, .lines = {}};
    const auto dealt = owned_parts(4, elements, odd);
    for (std::size_t site = 0; site < 4; ++site) {
      EXPECT_NEAR(dealt[site], static_cast<double>(odd.shares[site]) / kShareParts, 0.05);
    }
  }
}

TEST(ReducePlan, owners_take_turns) {
  const auto topologies = testing::topologies_of({1, 1, 1}, false);
  const auto stripes = stripes_for(topologies[0], 1u << 22, {true, true, true});
  const ReduceScheme scheme = equal_owners(3);
  const ReducePlan plan = plan_reduce(topologies[0], stripes, {.scheme = &scheme});
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    EXPECT_EQ(plan.chunks[c].reducer, static_cast<int>(c % 3));
  }
}

TEST(ReducePlan, few_bytes_are_one_chunk_and_nobody_receiving_is_none) {
  const auto topologies = testing::topologies_of({1, 1}, false);
  const auto small = stripes_for(topologies[0], 1000, {true, true});
  EXPECT_EQ(plan_reduce(topologies[0], small, PlanSettings{}).chunks.size(), 1u);
  const auto unwanted = stripes_for(topologies[0], 1000, {false, false});
  EXPECT_TRUE(plan_reduce(topologies[0], unwanted, PlanSettings{}).chunks.empty());
  EXPECT_TRUE(plan_reduce(topologies[0], unwanted, PlanSettings{}).peers.empty());
}

}  // namespace
}  // namespace geocomm::collective
