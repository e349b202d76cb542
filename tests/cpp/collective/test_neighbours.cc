// Whom a rank keeps a channel to.
#include <gtest/gtest.h>

#include "collective/layout/neighbours.h"
#include "topology_shapes.h"

namespace geocomm::collective {
namespace {

using testing::all_site_sizes;
using testing::topologies_of;

TEST(Neighbours, test_neighbours_of_equal_sites_are_those_of_the_stripe_and_both_beside) {
  const auto topologies = topologies_of({4, 4}, /*dealt_out=*/false);
  EXPECT_EQ(neighbours_of(topologies[0]), (std::set<int>{1, 3, 4}));
  EXPECT_EQ(neighbours_of(topologies[6]), (std::set<int>{2, 5, 7}));
}

TEST(Neighbours, test_neighbours_of_unequal_sites_are_those_of_all_stripes_of_the_rank) {
  const auto topologies = topologies_of({1, 3}, /*dealt_out=*/false);
  EXPECT_EQ(neighbours_of(topologies[0]), (std::set<int>{1, 2, 3}));
  EXPECT_EQ(neighbours_of(topologies[2]), (std::set<int>{0, 1, 3}));
}

TEST(Neighbours, test_neighbours_are_mutual_and_join_all_ranks) {
  for (const auto& sizes : all_site_sizes(3, 4)) {
    const auto topologies = topologies_of(sizes, /*dealt_out=*/true);
    std::set<int> reached = {0};
    std::vector<int> left = {0};
    while (!left.empty()) {
      const int rank = left.back();
      left.pop_back();
      const auto neighbours = neighbours_of(topologies[static_cast<std::size_t>(rank)]);
      EXPECT_FALSE(neighbours.contains(rank));
      for (const int other : neighbours) {
        EXPECT_TRUE(neighbours_of(topologies[static_cast<std::size_t>(other)]).contains(rank));
        if (reached.insert(other).second) left.push_back(other);
      }
    }
    EXPECT_EQ(reached.size(), topologies.size());
  }
}

}  // namespace
}  // namespace geocomm::collective
