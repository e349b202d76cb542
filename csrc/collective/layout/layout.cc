#include "collective/layout/layout.h"

#include <algorithm>

namespace geocomm::collective {

namespace {

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

Interval intersection(Interval a, Interval b) {
  const std::uint64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// The same elements of a shard wherever they lie.
Interval piece_of(Interval all, std::size_t index, std::size_t pieces) {
  return {all.begin + all.size() * index / pieces, all.begin + all.size() * (index + 1) / pieces};
}

Interval shard_of(std::uint64_t shard, int index) {
  const auto begin = static_cast<std::uint64_t>(index) * shard;
  return {begin, begin + shard};
}

std::uint64_t site_elements(const Topology& topology, int site, std::uint64_t shard) {
  return static_cast<std::uint64_t>(topology.site_size(site)) * shard;
}

// A run of one site's shards (concatenated in order of local rank) that lies in one rank's shard and in one
// part of this rank's site.
struct ShardRun {
  int rank = 0;             // whose shard
  std::uint64_t whole = 0;  // where it starts in the vector of all shards, in order of group rank
  std::uint64_t block = 0;  // where it starts in the block of the local rank that holds the part
  std::uint64_t count = 0;
};

// Where the shards of site `site` meet part `part` of it, held by local rank `part`; `base` is where parts of
// that site start in a block.
std::vector<ShardRun> runs_of_part(const Topology& topology, int site, std::uint64_t shard, int part,
                                   std::uint64_t base) {
  std::vector<ShardRun> runs;
  const Interval held = part_of(site_elements(topology, site, shard), topology.local_size(), part);
  for (int position = 0; position < topology.site_size(site); ++position) {
    const Interval mine = shard_of(shard, position);
    const Interval common = intersection(held, mine);
    if (common.empty()) continue;
    const int rank = topology.ranks_of(site)[static_cast<std::size_t>(position)];
    runs.push_back({rank, static_cast<std::uint64_t>(rank) * shard + common.begin - mine.begin,
                    base + common.begin - held.begin, common.size()});
  }
  return runs;
}

// Where the parts of each remote site start in a block ([own shard | parts, sites ascending]; own site: 0),
// and, as the last entry, the size of a block.
std::vector<std::uint64_t> block_bases(const Topology& topology, std::uint64_t shard) {
  std::vector<std::uint64_t> bases;
  std::uint64_t next = shard;
  for (int site = 0; site < topology.site_count(); ++site) {
    bases.push_back(site == topology.site() ? 0 : next);
    if (site != topology.site()) {
      next += part_size(site_elements(topology, site, shard), topology.local_size());
    }
  }
  bases.push_back(next);
  return bases;
}

// The runs of all blocks of this site: their union is the whole vector of shards. `from` of the result is the
// place in the vector, `to` the place in the blocks.
std::vector<CopyRun> vector_to_blocks(const Topology& topology, std::uint64_t shard) {
  std::vector<CopyRun> copies;
  if (shard == 0) return copies;
  const std::vector<std::uint64_t> bases = block_bases(topology, shard);
  for (int local = 0; local < topology.local_size(); ++local) {
    const std::uint64_t block_begin = static_cast<std::uint64_t>(local) * bases.back();
    const int own = topology.ranks_of(topology.site())[static_cast<std::size_t>(local)];
    copies.push_back({static_cast<std::uint64_t>(own) * shard, block_begin, shard});
    for (int site = 0; site < topology.site_count(); ++site) {
      if (site == topology.site()) continue;
      for (const ShardRun& run :
           runs_of_part(topology, site, shard, local, bases[static_cast<std::size_t>(site)])) {
        copies.push_back({run.whole, block_begin + run.block, run.count});
      }
    }
  }
  return copies;
}

}  // namespace

std::uint64_t part_size(std::uint64_t elements, int parts) {
  const auto count = static_cast<std::uint64_t>(parts);
  const std::uint64_t share = elements / count + (elements % count != 0 ? 1 : 0);
  return share <= kPartAlignment ? share : round_up(share, kPartAlignment);
}

Interval part_of(std::uint64_t elements, int parts, int index) {
  const std::uint64_t size = part_size(elements, parts);
  const auto at = static_cast<std::uint64_t>(index);
  return {std::min(elements, at * size), std::min(elements, (at + 1) * size)};
}

std::vector<Stripe> stripes_of(const Topology& topology, std::uint64_t elements) {
  std::vector<Stripe> stripes;
  std::uint64_t begin = 0;
  while (begin < elements) {
    Stripe stripe;
    std::uint64_t end = elements;
    for (int site = 0; site < topology.site_count(); ++site) {
      const std::uint64_t size = part_size(elements, topology.site_size(site));
      const std::uint64_t part = begin / size;
      end = std::min(end, (part + 1) * size);
      stripe.rank_of_site.push_back(topology.ranks_of(site)[static_cast<std::size_t>(part)]);
    }
    stripe.range = {begin, end};
    stripes.push_back(std::move(stripe));
    begin = end;
  }
  return stripes;
}

// The shards of each receiving site, as one vector, are cut at the shards' ends and at the ends of all other
// sites' parts; a stripe lies in one shard, so that it is a plain range of the input whatever the order of
// the ranks.
ReduceScatterLayout reduce_scatter_layout(const Topology& topology, std::uint64_t shard) {
  ReduceScatterLayout layout;
  const std::vector<std::uint64_t> bases = block_bases(topology, shard);
  layout.block = bases.back();
  layout.pack = vector_to_blocks(topology, shard);
  for (int target = 0; target < topology.site_count(); ++target) {
    const std::uint64_t elements = site_elements(topology, target, shard);
    std::uint64_t begin = 0;
    while (begin < elements) {
      const std::uint64_t position = begin / shard;
      const int receiver = topology.ranks_of(target)[static_cast<std::size_t>(position)];
      std::uint64_t end = (position + 1) * shard;
      std::vector<int> ranks;
      std::uint64_t own_part_begin = position * shard;
      for (int site = 0; site < topology.site_count(); ++site) {
        if (site == target) {
          ranks.push_back(receiver);
          continue;
        }
        const std::uint64_t size = part_size(elements, topology.site_size(site));
        const std::uint64_t part = begin / size;
        end = std::min(end, (part + 1) * size);
        ranks.push_back(topology.ranks_of(site)[static_cast<std::size_t>(part)]);
        if (site == topology.site()) own_part_begin = part * size;
      }
      if (ranks[static_cast<std::size_t>(topology.site())] == topology.rank()) {
        const std::uint64_t first = static_cast<std::uint64_t>(receiver) * shard + begin - position * shard;
        layout.stripes.push_back({{first, first + end - begin}, std::move(ranks)});
        layout.receiver.push_back(receiver);
        layout.offset.push_back(bases[static_cast<std::size_t>(target)] + begin - own_part_begin);
      }
      begin = end;
    }
  }
  return layout;
}

AllGatherLayout all_gather_layout(const Topology& topology, std::uint64_t shard, const RelayTurns& relays) {
  AllGatherLayout layout;
  const int own = topology.site();
  const auto relay_of = [&](int from, int to, std::size_t turn) {
    const int over = relays.at(turn).via(static_cast<std::size_t>(from), static_cast<std::size_t>(to));
    return over >= 0 && topology.site_size(over) == topology.site_size(to) ? over : -1;
  };
  const auto counterpart = [&](int site) {
    return topology.ranks_of(site)[static_cast<std::size_t>(topology.local_rank())];
  };
  const std::vector<std::uint64_t> bases = block_bases(topology, shard);
  layout.block = bases.back();
  const std::uint64_t own_elements = site_elements(topology, topology.site(), shard);
  const Interval mine = shard_of(shard, topology.local_rank());
  std::vector<AllGatherLayout::Piece> relayed;
  for (int site = 0; site < topology.site_count(); ++site) {
    if (site == own) continue;
    for (int position = 0; position < topology.site_size(site); ++position) {
      const Interval common = intersection(mine, part_of(own_elements, topology.site_size(site), position));
      for (std::size_t turn = 0; turn < relays.count(); ++turn) {
        const Interval piece = piece_of(common, turn, relays.count());
        if (piece.empty() || relay_of(own, site, turn) >= 0) continue;
        layout.sends.push_back({topology.ranks_of(site)[static_cast<std::size_t>(position)],
                                piece.begin - mine.begin, piece.size()});
      }
    }
    for (const ShardRun& run :
         runs_of_part(topology, site, shard, topology.local_rank(), bases[static_cast<std::size_t>(site)])) {
      for (std::size_t turn = 0; turn < relays.count(); ++turn) {
        const Interval piece = piece_of({run.block, run.block + run.count}, turn, relays.count());
        if (piece.empty()) continue;
        if (const int over = relay_of(site, own, turn); over >= 0) {
          relayed.push_back({counterpart(over), piece.begin, piece.size(), {}, true});
          continue;
        }
        std::vector<int> forward_to;
        for (int other = 0; other < topology.site_count(); ++other) {
          if (other != own && other != site && relay_of(site, other, turn) == own) {
            forward_to.push_back(counterpart(other));
          }
        }
        layout.receives.push_back({run.rank, piece.begin, piece.size(), std::move(forward_to)});
      }
    }
  }
  layout.receives.insert(layout.receives.end(), relayed.begin(), relayed.end());
  for (const CopyRun& run : vector_to_blocks(topology, shard)) {
    layout.unpack.push_back({run.to, run.from, run.count});
  }
  return layout;
}

}  // namespace geocomm::collective
