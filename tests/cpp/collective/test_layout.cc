// The layouts, against brute force: whole collectives are played through with plain vectors.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "collective/layout/layout.h"
#include "topology_shapes.h"

namespace geocomm::collective {
namespace {

using Vector = std::vector<std::uint64_t>;

// What rank `rank` contributes at element `index`: every (rank, index) differs, sums stay exact.
std::uint64_t value_of(int rank, std::uint64_t index) {
  return (static_cast<std::uint64_t>(rank) + 1) * 1'000'003 + index * 31;
}

std::uint64_t sum_over(const std::vector<int>& ranks, std::uint64_t index) {
  std::uint64_t sum = 0;
  for (int rank : ranks) sum += value_of(rank, index);
  return sum;
}

std::uint64_t sum_over_all(int size, std::uint64_t index) {
  std::uint64_t sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += value_of(rank, index);
  return sum;
}

TEST(PartSize, few_elements_are_spread_and_many_are_aligned) {
  EXPECT_EQ(part_size(0, 3), 0u);
  EXPECT_EQ(part_size(1, 3), 1u);
  EXPECT_EQ(part_size(10, 4), 3u);
  EXPECT_EQ(part_size(1024, 4), 256u);
  EXPECT_EQ(part_size(1025, 4), 512u);
  EXPECT_EQ(part_size(256 * 100, 1), 25'600u);
  EXPECT_EQ(part_size(256 * 100 + 1, 1), 25'856u);
}

TEST(PartOf, any_count_covers_every_element_once) {
  for (int parts = 1; parts <= 9; ++parts) {
    for (std::uint64_t elements : {0u, 1u, 2u, 255u, 256u, 257u, 1023u, 2303u, 2304u, 2305u, 10'007u}) {
      std::uint64_t next = 0;
      for (int index = 0; index < parts; ++index) {
        const Interval part = part_of(elements, parts, index);
        EXPECT_EQ(part.begin, next);
        EXPECT_LE(part.size(), part_size(elements, parts));
        next = part.end;
      }
      EXPECT_EQ(next, elements) << parts << " parts";
    }
  }
}

TEST(StripesOf, every_shape_covers_each_element_once_by_the_ranks_that_hold_it) {
  for (const auto& sizes : testing::all_site_sizes(5, 4)) {
    for (std::uint64_t elements : {0u, 1u, 5u, 257u, 1021u, 2500u, 5003u}) {
      const Topology topology = testing::topologies_of(sizes, true).front();
      std::uint64_t next = 0;
      for (const Stripe& stripe : stripes_of(topology, elements)) {
        ASSERT_EQ(stripe.range.begin, next);
        ASSERT_FALSE(stripe.range.empty());
        next = stripe.range.end;
        ASSERT_EQ(stripe.rank_of_site.size(), sizes.size());
        for (int site = 0; site < topology.site_count(); ++site) {
          const int rank = stripe.rank_of_site[static_cast<std::size_t>(site)];
          ASSERT_EQ(topology.site_of(rank), site);
          const Interval part = part_of(elements, topology.site_size(site), topology.local_rank_of(rank));
          ASSERT_LE(part.begin, stripe.range.begin);
          ASSERT_GE(part.end, stripe.range.end);
        }
      }
      ASSERT_EQ(next, elements);
    }
  }
}

// Pack, an inner reduce-scatter, the stripes' sums, and what each receiver then holds.
void check_reduce_scatter(const std::vector<Topology>& topologies, std::uint64_t shard) {
  const int size = topologies.front().size();
  const std::uint64_t elements = shard * static_cast<std::uint64_t>(size);
  std::vector<ReduceScatterLayout> layouts;
  for (const Topology& topology : topologies) layouts.push_back(reduce_scatter_layout(topology, shard));

  std::vector<Vector> blocks(topologies.size());
  for (int site = 0; site < topologies.front().site_count(); ++site) {
    const auto& ranks = topologies.front().ranks_of(site);
    const ReduceScatterLayout& layout = layouts[static_cast<std::size_t>(ranks.front())];
    Vector staging(layout.block * ranks.size(), 0);
    std::vector<int> written(staging.size(), 0);
    Vector seen(elements, 0);
    for (const CopyRun& run : layout.pack) {
      for (std::uint64_t i = 0; i < run.count; ++i) {
        staging[run.to + i] = sum_over(ranks, run.from + i);
        ++written[run.to + i];
        ++seen[run.from + i];
      }
    }
    for (int count : written) ASSERT_LE(count, 1);
    for (std::uint64_t count : seen) ASSERT_EQ(count, 1u);
    for (std::size_t local = 0; local < ranks.size(); ++local) {
      const auto begin = staging.begin() + static_cast<std::ptrdiff_t>(local * layout.block);
      blocks[static_cast<std::size_t>(ranks[local])] =
          Vector(begin, begin + static_cast<std::ptrdiff_t>(layout.block));
    }
  }

  // Each stripe as its ranks see it: by (receiver, begin), the same ranges and partners everywhere.
  std::map<std::pair<int, std::uint64_t>, std::vector<std::size_t>> members;
  Vector covered(elements, 0);
  for (std::size_t rank = 0; rank < layouts.size(); ++rank) {
    const ReduceScatterLayout& layout = layouts[rank];
    ASSERT_EQ(layout.stripes.size(), layout.receiver.size());
    ASSERT_EQ(layout.stripes.size(), layout.offset.size());
    for (std::size_t i = 0; i < layout.stripes.size(); ++i) {
      const Stripe& stripe = layout.stripes[i];
      ASSERT_FALSE(stripe.range.empty());
      members[{layout.receiver[i], stripe.range.begin}].push_back(rank);
      if (layout.receiver[i] != static_cast<int>(rank)) continue;
      ASSERT_EQ(layout.offset[i], stripe.range.begin - rank * shard);
      for (std::uint64_t e = stripe.range.begin; e < stripe.range.end; ++e) {
        ++covered[e];
        std::uint64_t sum = 0;
        for (int partner : stripe.rank_of_site) {
          const ReduceScatterLayout& other = layouts[static_cast<std::size_t>(partner)];
          const auto at = std::find_if(other.stripes.begin(), other.stripes.end(),
                                       [&](const Stripe& l) { return l.range == stripe.range; });
          ASSERT_NE(at, other.stripes.end());
          ASSERT_EQ(at->rank_of_site, stripe.rank_of_site);
          const auto index = static_cast<std::size_t>(at - other.stripes.begin());
          ASSERT_EQ(other.receiver[index], static_cast<int>(rank));
          sum += blocks[static_cast<std::size_t>(partner)][other.offset[index] + e - stripe.range.begin];
        }
        ASSERT_EQ(sum, sum_over_all(size, e));
      }
    }
  }
  for (std::uint64_t count : covered) ASSERT_EQ(count, 1u);
  for (const auto& [key, ranks] : members) {
    ASSERT_EQ(ranks.size(), static_cast<std::size_t>(topologies.front().site_count()));
  }
}

// What `to` gets from `from`, in order: whose shard, where in it, how much.
std::vector<AllGatherLayout::Piece> pieces_between(const std::vector<AllGatherLayout>& layouts, int from,
                                                   int to) {
  const AllGatherLayout& layout = layouts[static_cast<std::size_t>(from)];
  std::vector<AllGatherLayout::Piece> pieces;
  for (const auto& send : layout.sends) {
    if (send.rank == to) pieces.push_back({from, send.offset, send.count});
  }
  std::map<int, std::size_t> got;  // pieces of each rank's own so far
  for (const auto& piece : layout.receives) {
    if (piece.relayed) {
      EXPECT_TRUE(piece.forward_to.empty());
      continue;
    }
    std::vector<AllGatherLayout::Piece> sends = layouts[static_cast<std::size_t>(piece.rank)].sends;
    std::erase_if(sends, [&](const auto& send) { return send.rank != from; });
    const std::size_t place = got[piece.rank]++;
    if (std::ranges::count(piece.forward_to, to) == 0 || place >= sends.size()) continue;
    pieces.push_back({piece.rank, sends[place].offset, sends[place].count, {}, true});
  }
  return pieces;
}

// Sends matched with receives, an inner all-gather, unpack.
void check_all_gather(const std::vector<Topology>& topologies, std::uint64_t shard,
                      const RelayTurns& relays = {}) {
  const int size = topologies.front().size();
  std::vector<AllGatherLayout> layouts;
  for (const Topology& topology : topologies) {
    layouts.push_back(all_gather_layout(topology, shard, relays));
  }
  std::vector<Vector> blocks;
  for (std::size_t rank = 0; rank < layouts.size(); ++rank) {
    Vector block(layouts[rank].block, 0);
    for (std::uint64_t i = 0; i < shard; ++i) block[i] = value_of(static_cast<int>(rank), i);
    for (int peer = 0; peer < size; ++peer) {
      const auto pieces = pieces_between(layouts, peer, static_cast<int>(rank));
      std::size_t next = 0;
      for (const auto& piece : layouts[rank].receives) {
        if (piece.rank != peer) continue;
        ASSERT_LT(next, pieces.size());
        const auto& sent = pieces[next++];
        ASSERT_EQ(sent.count, piece.count);
        ASSERT_EQ(sent.relayed, piece.relayed);
        ASSERT_NE(piece.count, 0u);
        for (std::uint64_t i = 0; i < piece.count; ++i) {
          block[piece.offset + i] = value_of(sent.rank, sent.offset + i);
        }
      }
      ASSERT_EQ(next, pieces.size());
    }
    blocks.push_back(std::move(block));
  }
  for (std::size_t rank = 0; rank < layouts.size(); ++rank) {
    Vector gathered;
    for (int local : topologies[rank].ranks_of(topologies[rank].site())) {
      const Vector& block = blocks[static_cast<std::size_t>(local)];
      gathered.insert(gathered.end(), block.begin(), block.end());
    }
    std::vector<int> written(shard * static_cast<std::uint64_t>(size), 0);
    for (const CopyRun& run : layouts[rank].unpack) {
      for (std::uint64_t i = 0; i < run.count; ++i) {
        const std::uint64_t to = run.to + i;
        ++written[to];
        ASSERT_EQ(gathered[run.from + i], value_of(static_cast<int>(to / shard), to % shard));
      }
    }
    for (int count : written) ASSERT_EQ(count, 1);
  }
}

class LayoutShapes : public ::testing::TestWithParam<bool> {};

TEST_P(LayoutShapes, reduce_scatter_played_through_gives_each_rank_its_sums) {
  for (const auto& sizes : testing::all_site_sizes(4, 4)) {
    const auto topologies = testing::topologies_of(sizes, GetParam());
    for (std::uint64_t shard : {0u, 1u, 3u, 131u}) {
      ASSERT_NO_FATAL_FAILURE(check_reduce_scatter(topologies, shard)) << "shard " << shard;
    }
  }
  for (const std::vector<int>& sizes : {std::vector{1, 2, 3, 4, 1}, {4, 4, 4, 4, 4}, {4, 1, 1, 3, 2}}) {
    ASSERT_NO_FATAL_FAILURE(check_reduce_scatter(testing::topologies_of(sizes, GetParam()), 701));
  }
}

TEST_P(LayoutShapes, all_gather_played_through_gives_each_rank_all_shards) {
  for (const auto& sizes : testing::all_site_sizes(4, 4)) {
    const auto topologies = testing::topologies_of(sizes, GetParam());
    for (std::uint64_t shard : {0u, 1u, 3u, 131u}) {
      ASSERT_NO_FATAL_FAILURE(check_all_gather(topologies, shard)) << "shard " << shard;
    }
  }
  for (const std::vector<int>& sizes : {std::vector{1, 2, 3, 4, 1}, {4, 4, 4, 4, 4}, {4, 1, 1, 3, 2}}) {
    ASSERT_NO_FATAL_FAILURE(check_all_gather(testing::topologies_of(sizes, GetParam()), 701));
  }
}

TEST_P(LayoutShapes, all_gather_over_relays_gives_each_rank_all_shards) {
  for (const std::vector<int>& sizes :
       {std::vector{1, 1, 1}, {2, 2, 2}, {3, 2, 2, 4}, {1, 3, 3, 3}, {4, 1, 2}}) {
    const auto sites = sizes.size();
    for (std::size_t slow = 1; slow < sites; ++slow) {
      LinkMatrix links = LinkMatrix::uniform(sites, 1e8, 0.05);
      for (std::size_t site = slow; site < sites; site += 2) {
        links.bytes_per_s[site] = links.bytes_per_s[site * sites] = 1e6;
      }
      const RelayPaths relays = choose_relays(links);
      for (std::uint64_t shard : {1u, 3u, 701u}) {
        ASSERT_NO_FATAL_FAILURE(check_all_gather(testing::topologies_of(sizes, GetParam()), shard, relays));
      }
    }
  }
}

TEST_P(LayoutShapes, all_gather_by_regions_gives_each_rank_all_shards) {
  for (const std::vector<int>& sizes :
       {std::vector{1, 1, 1, 1}, {2, 2, 2, 2, 2}, {3, 2, 2, 4}, {1, 3, 3, 3, 1, 1}, {4, 1, 2}}) {
    for (const std::uint32_t members : {2u, 3u}) {
      LinkMatrix links = LinkMatrix::uniform(sizes.size(), 1e8, 0.05);
      for (std::uint32_t site = 0; site < links.sites; ++site) links.regions.push_back(site / members);
      const RelayTurns relays = relays_by_region(links);
      for (std::uint64_t shard : {1u, 3u, 701u}) {
        ASSERT_NO_FATAL_FAILURE(check_all_gather(testing::topologies_of(sizes, GetParam()), shard, relays));
      }
    }
  }
}

TEST(Layout, all_gather_by_regions_crosses_once_for_each_region) {
  const auto topologies = testing::topologies_of({1, 1, 1, 1, 1, 1}, false);
  LinkMatrix links = LinkMatrix::uniform(6, 1e8, 0.05);
  links.regions = {0, 0, 0, 1, 1, 1};
  const RelayTurns relays = relays_by_region(links);
  for (const Topology& topology : topologies) {
    std::map<int, std::uint64_t> crossed;
    for (const auto& send : all_gather_layout(topology, 600, relays).sends) {
      if (links.crosses(static_cast<std::size_t>(topology.site()), static_cast<std::size_t>(send.rank))) {
        crossed[send.rank] += send.count;
      }
    }
    // A third over each of the three links.
    EXPECT_EQ(crossed.size(), 3u);
    for (const auto& [rank, count] : crossed) EXPECT_EQ(count, 200u);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LayoutShapes, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "dealt_out" : "in_blocks");
});

}  // namespace
}  // namespace geocomm::collective
