#include <gtest/gtest.h>

#include "collective/layout/topology.h"

namespace geocomm::collective {
namespace {

using core::StatusCode;

TEST(Topology, create_interleaved_sites_numbers_them_by_lowest_rank) {
  auto made = Topology::create(3, {2, 0, 2, 0, 1}, {"a", "b", "c"});
  ASSERT_TRUE(made.is_ok()) << made.status().to_string();
  const Topology& topology = *made;
  EXPECT_EQ(topology.size(), 5);
  EXPECT_EQ(topology.site_count(), 3);
  EXPECT_EQ(topology.site_name(0), "c");
  EXPECT_EQ(topology.site_name(1), "a");
  EXPECT_EQ(topology.site_name(2), "b");
  EXPECT_EQ(topology.ranks_of(0), (std::vector<int>{0, 2}));
  EXPECT_EQ(topology.ranks_of(1), (std::vector<int>{1, 3}));
  EXPECT_EQ(topology.ranks_of(2), (std::vector<int>{4}));
  EXPECT_EQ(topology.site(), 1);
  EXPECT_EQ(topology.local_rank(), 1);
  EXPECT_EQ(topology.local_size(), 2);
  EXPECT_EQ(topology.local_rank_of(4), 0);
}

TEST(Topology, create_bad_input_is_refused) {
  EXPECT_EQ(Topology::create(2, {0, 1}, {"a", "b"}).status().code(), StatusCode::InvalidArgument);
  EXPECT_EQ(Topology::create(-1, {0, 1}, {"a", "b"}).status().code(), StatusCode::InvalidArgument);
  EXPECT_EQ(Topology::create(0, {}, {}).status().code(), StatusCode::InvalidArgument);
  EXPECT_EQ(Topology::create(0, {0, 2}, {"a", "b"}).status().code(), StatusCode::InvalidArgument);
  EXPECT_EQ(Topology::create(0, {0, -1}, {"a", "b"}).status().code(), StatusCode::InvalidArgument);
  EXPECT_EQ(Topology::create(0, {0, 0}, {"a", "b"}).status().code(), StatusCode::InvalidArgument);
}

}  // namespace
}  // namespace geocomm::collective
