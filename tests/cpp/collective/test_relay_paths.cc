// Which links are relayed, and what the model makes of it.
#include <gtest/gtest.h>

#include <random>

#include "collective/policy/cost_model.h"
#include "collective/policy/owner_shares.h"
#include "link_shapes.h"

namespace geocomm::collective {
namespace {

// All links alike but for the one between the first two sites, both ways.
LinkMatrix slow_pair(std::size_t sites, double rate, double slow_rate) {
  LinkMatrix links = LinkMatrix::uniform(sites, rate, 0.05);
  links.bytes_per_s[1] = links.bytes_per_s[sites] = slow_rate;
  return links;
}

LinkMatrix random_links(std::size_t sites, std::uint32_t seed) {
  std::mt19937 engine(seed);
  LinkMatrix links = LinkMatrix::uniform(sites, 1.0, 0.05);
  for (double& rate : links.bytes_per_s) {
    rate = 1e6 * (1.0 + (engine() % 4 == 0 ? 0.0 : static_cast<double>(engine() % 100)));
  }
  return links;
}

TEST(RelayPaths, a_link_under_half_of_the_best_way_round_is_relayed) {
  EXPECT_FALSE(choose_relays(slow_pair(3, 1e8, 5e7)).any());
  const RelayPaths relays = choose_relays(slow_pair(3, 1e8, 4.9e7));
  EXPECT_EQ(relays.via(0, 1), 2);
  EXPECT_EQ(relays.via(1, 0), 2);
  EXPECT_EQ(relays.via(0, 2), -1);
  EXPECT_FALSE(choose_relays(LinkMatrix::uniform(2, 1e8, 0.05)).any());
}

TEST(RelayPaths, the_site_with_the_fastest_links_relays_one_direction_may_be_enough) {
  LinkMatrix links = slow_pair(4, 1e8, 1e7);
  links.bytes_per_s[0 * 4 + 3] = links.bytes_per_s[3 * 4 + 1] = 2e8;
  links.bytes_per_s[1 * 4 + 0] = 1e8;
  const RelayPaths relays = choose_relays(links);
  EXPECT_EQ(relays.via(0, 1), 3);
  EXPECT_EQ(relays.via(1, 0), -1);
}

TEST(RelayPaths, a_relays_own_line_counts) {
  LinkMatrix links = slow_pair(3, 1e8, 4e7);
  links.up_bytes_per_s = links.down_bytes_per_s = {1e9, 1e9, 1e8};
  EXPECT_FALSE(choose_relays(links).any());
}

TEST(RelayPaths, few_bytes_go_straight_where_the_way_round_is_longer) {
  const LinkMatrix links = slow_pair(3, 1e8, 1e7);  // 50 ms straight, 100 ms round
  const RelayPaths relays = choose_relays(links);
  ASSERT_EQ(relays.via(0, 1), 2);
  EXPECT_FALSE(relays_for(0, links, relays).any());
  EXPECT_FALSE(relays_for(6e5, links, relays).any());
  EXPECT_EQ(relays_for(7e5, links, relays).over, relays.over);
  EXPECT_FALSE(relays_for(1e9, links, {3}).any());
}

TEST(RelayPaths, links_of_a_path_are_not_relayed_and_many_paths_share_a_link) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const std::size_t sites = 3 + seed % 6;
    const LinkMatrix links = random_links(sites, seed);
    const RelayPaths relays = choose_relays(links);
    std::vector<double> paths(sites * sites, 1.0);
    for (std::size_t from = 0; from < sites; ++from) {
      for (std::size_t to = 0; to < sites; ++to) {
        const int over = from == to ? -1 : relays.via(from, to);
        if (over < 0) continue;
        const auto relay = static_cast<std::size_t>(over);
        ASSERT_EQ(relays.via(from, relay), -1);
        ASSERT_EQ(relays.via(relay, to), -1);
        ++paths[from * sites + relay];
        ++paths[relay * sites + to];
      }
    }
    // Also with all of them on it, a link is no slower than those that it spares.
    for (std::size_t from = 0; from < sites; ++from) {
      for (std::size_t to = 0; to < sites; ++to) {
        const int over = from == to ? -1 : relays.via(from, to);
        if (over < 0) continue;
        const auto relay = static_cast<std::size_t>(over);
        ASSERT_GE(links.rate(from, relay) / paths[from * sites + relay], links.rate(from, to));
        ASSERT_GE(links.rate(relay, to) / paths[relay * sites + to], links.rate(from, to));
      }
    }
  }
}

TEST(RelayPaths, loads_are_those_of_the_frames_that_the_plan_sends) {
  const RelayPaths relays = choose_relays(slow_pair(3, 1e8, 1e7));
  // Everyone to everyone: 2 passes on what 0 and 1 have for each other.
  EXPECT_EQ(broadcast_load(relays, 3, 0, 1), 0.0);
  EXPECT_EQ(broadcast_load(relays, 3, 0, 2), 1.0);
  EXPECT_EQ(broadcast_load(relays, 3, 2, 1), 2.0);
  // Owners: contributions to 1 and 2 and the results of 0, which 1 gets from 2.
  EXPECT_EQ(owner_load(relays, 3, 0, 2), (std::vector<double>{1.0, 1.0, 1.0}));
  EXPECT_EQ(owner_load(relays, 3, 2, 1), (std::vector<double>{1.0, 2.0, 1.0}));
  EXPECT_EQ(owner_load(relays, 3, 0, 1), (std::vector<double>{0.0, 0.0, 0.0}));
  EXPECT_EQ(owner_load({}, 3, 0, 1), (std::vector<double>{1.0, 1.0, 0.0}));
}

TEST(RelayPaths, the_model_relays_where_that_is_faster_and_never_where_it_is_not) {
  // Small: what counts is the delay, and a relay adds to it.
  const CostModel model = CostModel::create(slow_pair(3, 1e8, 1e6)).value();
  EXPECT_FALSE(model.choose(1e3).relays.any());
  // Large: with three sites the one between the two owns everything, with four others can own too.
  EXPECT_TRUE(model.choose(1e9).has_owners());
  EXPECT_FALSE(model.choose(1e9).relays.any());
  const CostModel four = CostModel::create(slow_pair(4, 1e8, 1e6)).value();
  EXPECT_TRUE(four.choose(1e9).has_owners());
  EXPECT_TRUE(four.choose(1e9).relays.any());
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    LinkMatrix links = random_links(3 + seed % 5, seed);
    const CostModel both = CostModel::create(links).value();
    double straight = 1e300;
    double relayed = 1e300;
    for (const ReduceScheme& scheme : both.schemes()) {
      double& least = scheme.relays.any() ? relayed : straight;
      least = std::min(least, scheme.seconds(1e8));
    }
    EXPECT_LE(both.seconds(1e8), std::min(straight, relayed) * 1.006);
  }
}

TEST(RelayPaths, owners_with_relays_have_shares_that_no_others_beat) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const LinkMatrix links = random_links(3, seed);
    const RelayPaths relays = choose_relays(links);
    const OwnerLoads loads(links, relays);
    const double least = loads.seconds_per_byte(loads.best_shares(std::vector<bool>(3, true)));
    for (int a = 0; a <= 100; ++a) {
      for (int b = 0; a + b <= 100; ++b) {
        const std::vector<double> shares = {a / 100.0, b / 100.0, (100 - a - b) / 100.0};
        EXPECT_LE(least, loads.seconds_per_byte(shares) * (1 + 1e-9)) << "seed " << seed;
      }
    }
  }
}

TEST(RelayPaths, both_ways_of_the_tests_are_relayed) {
  for (const std::size_t sites : {3u, 4u, 5u}) {
    const CostModel broadcast =
        CostModel::create(testing::links_for(testing::Way::RelayedBroadcast, sites)).value();
    EXPECT_FALSE(broadcast.choose(1e4).has_owners());
    EXPECT_TRUE(broadcast.choose(1e4).relays.any());
    if (sites < 4) continue;
    const CostModel owners =
        CostModel::create(testing::links_for(testing::Way::RelayedOwners, sites)).value();
    EXPECT_TRUE(owners.choose(1e4).has_owners());
    EXPECT_TRUE(owners.choose(1e4).relays.any());
  }
}

}  // namespace
}  // namespace geocomm::collective
