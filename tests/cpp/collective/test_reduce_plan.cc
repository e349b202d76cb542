#include <gtest/gtest.h>

#include "collective/reduce_plan.h"
#include "topology_shapes.h"

namespace geocomm::collective {
namespace {

std::vector<PlannedLane> lanes_for(const Topology& topology, std::uint64_t elements,
                                   const std::vector<bool>& receives) {
  std::vector<PlannedLane> mine;
  for (const Lane& lane : lanes_of(topology, elements)) {
    if (lane.rank_of_site[static_cast<std::size_t>(topology.site())] == topology.rank()) {
      mine.push_back({lane, receives});
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
  std::vector<std::vector<PlannedLane>> lanes;
  std::vector<ReducePlan> plans;
  for (const Topology& topology : topologies) {
    lanes.push_back(lanes_for(topology, elements, receives));
    plans.push_back(plan_reduce(topology, lanes.back(), settings));
  }
  const auto place = [&](std::size_t rank, const Message& message) {
    const PlannedChunk& chunk = plans[rank].chunks[message.chunk];
    const std::uint64_t begin = lanes[rank][chunk.lane].lane.range.begin;
    return std::tuple(begin + chunk.range.begin, chunk.range.size(), chunk.flow, chunk.reducer, message.kind);
  };
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    std::vector<std::uint64_t> next(lanes[rank].size(), 0);
    for (const PlannedChunk& chunk : plans[rank].chunks) {
      ASSERT_EQ(chunk.range.begin, next[chunk.lane]);
      ASSERT_LE(chunk.range.size(),
                std::max<std::uint64_t>(settings.chunk_bytes / settings.element_bytes, 256));
      next[chunk.lane] = chunk.range.end;
    }
    for (std::size_t l = 0; l < next.size(); ++l) ASSERT_EQ(next[l], lanes[rank][l].lane.range.size());
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

TEST(ReducePlan, every_shape_and_flow_is_numbered_alike_on_both_sides) {
  for (const auto& sizes : testing::all_site_sizes(4, 3)) {
    for (const std::size_t threshold : {std::size_t{0}, std::size_t{1} << 40}) {
      const PlanSettings settings{4, 2048, threshold};
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

TEST(ReducePlan, owners_get_equally_many_chunks_and_a_full_chunk_fits_its_buffer) {
  const auto topologies = testing::topologies_of({1, 1, 1}, false);
  const std::uint64_t elements = 16 * 1024 * 1024;
  const auto lanes = lanes_for(topologies[0], elements, {true, true, true});
  const ReducePlan plan = plan_reduce(topologies[0], lanes, PlanSettings{});
  std::vector<std::uint64_t> owned(3, 0);
  for (const PlannedChunk& chunk : plan.chunks) {
    EXPECT_EQ(chunk.flow, Flow::OwnerReduces);
    EXPECT_LE(chunk.range.size() * 4 + 64, std::size_t{1} << 20);
    owned[static_cast<std::size_t>(chunk.reducer)] += chunk.range.size();
  }
  for (std::uint64_t share : owned) {
    EXPECT_NEAR(static_cast<double>(share), static_cast<double>(elements) / 3, 2.0 * 262'144);
  }
}

TEST(ReducePlan, few_bytes_are_one_chunk_and_nobody_receiving_is_none) {
  const auto topologies = testing::topologies_of({1, 1}, false);
  const auto small = lanes_for(topologies[0], 1000, {true, true});
  EXPECT_EQ(plan_reduce(topologies[0], small, PlanSettings{}).chunks.size(), 1u);
  const auto unwanted = lanes_for(topologies[0], 1000, {false, false});
  EXPECT_TRUE(plan_reduce(topologies[0], unwanted, PlanSettings{}).chunks.empty());
  EXPECT_TRUE(plan_reduce(topologies[0], unwanted, PlanSettings{}).peers.empty());
}

}  // namespace
}  // namespace geocomm::collective
