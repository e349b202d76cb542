// The linear program of owner shares, against a search over all shares.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "collective/policy/owner_shares.h"

namespace geocomm::collective {
namespace {

LinkMatrix random_links(std::size_t sites, bool with_access, std::uint32_t seed) {
  std::mt19937 engine(seed);
  const auto rate = [&] { return 1e6 * (1.0 + static_cast<double>(engine() % 1000) / 20.0); };
  LinkMatrix links = LinkMatrix::uniform(sites, 1.0, 0.05);
  for (double& value : links.bytes_per_s) value = rate();
  if (with_access) {
    for (std::size_t site = 0; site < sites; ++site) {
      links.up_bytes_per_s.push_back(2.0 * rate());
      links.down_bytes_per_s.push_back(2.0 * rate());
    }
  }
  return links;
}

// The least time over all shares that are multiples of 1 / steps.
double searched(const OwnerLoads& loads, std::vector<double>& shares, std::size_t site, int left, int steps) {
  if (site + 1 == shares.size()) {
    shares[site] = static_cast<double>(left) / steps;
    return loads.seconds_per_byte(shares);
  }
  double least = 1e300;
  for (int part = 0; part <= left; ++part) {
    shares[site] = static_cast<double>(part) / steps;
    least = std::min(least, searched(loads, shares, site + 1, left - part, steps));
  }
  return least;
}

TEST(OwnerShares, are_shares_and_no_searched_ones_are_faster) {
  for (const std::size_t sites : {3u, 4u}) {
    const int steps = sites == 3 ? 200 : 40;
    for (std::uint32_t seed = 0; seed < 40; ++seed) {
      const LinkMatrix links = random_links(sites, seed % 2 == 1, seed);
      const OwnerLoads loads(links);
      const auto shares = loads.best_shares(std::vector<bool>(sites, true));
      EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1.0, 1e-9);
      for (const double share : shares) EXPECT_GE(share, 0.0);
      std::vector<double> tried(sites);
      const double best = searched(loads, tried, 0, steps, steps);
      const double solved = loads.seconds_per_byte(shares);
      EXPECT_LE(solved, best * (1 + 1e-9)) << "sites " << sites << " seed " << seed;
      EXPECT_GE(solved, best * (sites == 3 ? 0.97 : 0.85)) << "too good: a bound is missing";
    }
  }
}

TEST(OwnerShares, of_equal_links_are_equal) {
  for (const std::size_t sites : {3u, 5u, 8u, 16u}) {
    for (const double share :
         OwnerLoads(LinkMatrix::uniform(sites, 1e8, 0.05)).best_shares(std::vector<bool>(sites, true))) {
      EXPECT_NEAR(share, 1.0 / static_cast<double>(sites), 1e-9);
    }
  }
}

TEST(OwnerShares, of_a_site_whose_links_are_slow_is_nothing) {
  LinkMatrix links = LinkMatrix::uniform(4, 1e8, 0.05);
  for (std::size_t other = 0; other < 3; ++other) {
    links.bytes_per_s[other * 4 + 3] = links.bytes_per_s[3 * 4 + other] = 2e7;
  }
  const auto shares = OwnerLoads(links).best_shares(std::vector<bool>(4, true));
  EXPECT_NEAR(shares[3], 0.0, 1e-9);
  // Its links carry one other site's share each: no better than a third.
  EXPECT_NEAR(OwnerLoads(links).seconds_per_byte(shares), 1.0 / 3 / 2e7, 1e-15);
}

TEST(OwnerShares, of_a_site_with_little_access_is_less) {
  LinkMatrix links = LinkMatrix::uniform(4, 1e9, 0.05);
  links.up_bytes_per_s = {1e8, 1e8, 1e8, 8e7};
  links.down_bytes_per_s = {1e8, 1e8, 1e8, 1e8};
  const auto shares = OwnerLoads(links).best_shares(std::vector<bool>(4, true));
  EXPECT_LT(shares[3], 0.2);
  EXPECT_NEAR(shares[0], shares[1], 1e-9);
}

TEST(OwnerShares, only_those_own_who_may) {
  const auto shares = OwnerLoads(LinkMatrix::uniform(4, 1e8, 0.05)).best_shares({true, false, true, false});
  EXPECT_NEAR(shares[0] + shares[2], 1.0, 1e-9);
  EXPECT_EQ(shares[1], 0.0);
  EXPECT_EQ(shares[3], 0.0);
}

TEST(OwnerShares, of_64_random_sites_are_found) {
  const OwnerLoads loads(random_links(64, true, 7));
  const auto shares = loads.best_shares(std::vector<bool>(64, true));
  EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1.0, 1e-9);
  EXPECT_LE(loads.seconds_per_byte(shares), loads.seconds_per_byte(std::vector<double>(64, 1.0 / 64)));
}

// A step takes as many products as all loads have parts, and as the sites squared. There are about as many
// steps as sites. By Bland's rule alone four alike sites more took five times as many: 40 took 15 s.
TEST(OwnerShares, of_many_sites_take_few_products) {
  for (const std::size_t sites : {48u, 128u}) {
    LinkMatrix alike = LinkMatrix::uniform(sites, 1e8, 0.05);
    LinkMatrix regions = random_links(sites, true, 3);
    for (std::uint32_t site = 0; site < sites; ++site) regions.regions.push_back(site / 8);
    const auto products_of = [&](const LinkMatrix& links, const RelayTurns& relays, bool half) {
      std::vector<bool> may_own(sites, true);
      for (std::size_t site = 0; half && site < sites; site += 2) may_own[site] = false;
      std::size_t products = 0;
      const auto shares = OwnerLoads(links, relays).best_shares(may_own, &products);
      EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1.0, 1e-9);
      return static_cast<double>(products) / static_cast<double>(sites * sites * sites);
    };
    for (const bool half : {false, true}) {
      EXPECT_LT(products_of(alike, {}, half), 8.0) << sites;
      EXPECT_LT(products_of(random_links(sites, false, 1), {}, half), 8.0) << sites;
      EXPECT_LT(products_of(random_links(sites, true, 2), {}, half), 8.0) << sites;
      EXPECT_LT(products_of(regions, relays_by_region(regions), half), 8.0) << sites;
    }
  }
}

}  // namespace
}  // namespace geocomm::collective
