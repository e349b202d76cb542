// Who owns which elements at each stage of a collective: pure arithmetic over the topology, the same on every
// rank.
//
// Inside a site a vector of `elements` is split in parts of equal size, one per rank (the last ones may be
// short or empty): what an inner reduce-scatter leaves on each rank. Sites of different sizes split
// differently; the boundaries of all sites together cut the vector into stripes, and within a stripe one rank
// per site holds the data.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/layout/topology.h"
#include "collective/policy/relay_paths.h"

namespace geocomm::collective {

struct Interval {
  std::uint64_t begin = 0;  // elements
  std::uint64_t end = 0;
  std::uint64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

// Parts larger than this are multiples of it, so that codec blocks do not straddle ranks.
inline constexpr std::uint64_t kPartAlignment = 256;

// Elements of each part, padding included (all parts are equal): ceil(elements / parts) where that is at most
// kPartAlignment (few elements are spread over all ranks), else the next multiple of kPartAlignment. A site's
// padded vector has part_size() * parts elements. Preconditions: parts >= 1, elements < 2^63.
std::uint64_t part_size(std::uint64_t elements, int parts);
// Part `index` without the padding: the last parts may be short or empty.
Interval part_of(std::uint64_t elements, int parts, int index);

// A range that one rank of every site holds.
struct Stripe {
  Interval range;                 // in the vector
  std::vector<int> rank_of_site;  // group rank, one per site
};

// The stripes of an all-reduce (or reduce) of `elements`, in order, none empty; all of them, whoever takes
// part.
std::vector<Stripe> stripes_of(const Topology& topology, std::uint64_t elements);

// A run of elements to copy between a user's tensor and a staging buffer.
struct CopyRun {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t count = 0;
};

// Reduce-scatter of `shard` elements per group rank (the input has shard * size elements, in order of group
// rank). Before the inner reduce-scatter each rank of the site packs its input so that the rank at local
// position i is left with [its own shard | its part of the shards of site 1 | of site 2 | ...] (own site left
// out, sites ascending).
struct ReduceScatterLayout {
  std::uint64_t block = 0;  // elements that each local rank is left with, padding included
  std::vector<CopyRun>
      pack;  // input → staging of block * local_size elements; staging not named is padding (zero)
  std::vector<Stripe>
      stripes;  // those in which this rank takes part, none empty, ordered by the receiving site
                // and the place in it; range: in the *whole* input (shard * size elements)
  std::vector<int> receiver;          // per stripe: the group rank that ends with the sum
  std::vector<std::uint64_t> offset;  // per stripe: where this rank's elements of it start in its block
};
ReduceScatterLayout reduce_scatter_layout(const Topology& topology, std::uint64_t shard);

// All-gather of `shard` elements per group rank, the mirror image: each rank sends its shard's overlap with
// the parts that remote ranks take, then an inner all-gather of [own shard | part of site 1's data | ...] per
// local rank, then unpack.
struct AllGatherLayout {
  struct Piece {
    int rank = 0;              // the remote peer
    std::uint64_t offset = 0;  // elements: sends: in this rank's shard; receives: in this rank's block
    std::uint64_t count = 0;
    std::vector<int> forward_to = {};  // receives: the ranks that get it from here
    bool relayed = false;              // receives: the peer does so with this piece
  };
  std::uint64_t block = 0;
  std::vector<Piece> sends;     // none empty, of a peer at most one for each turn
  std::vector<Piece> receives;  // none empty; of a peer, its own first
  std::vector<CopyRun> unpack;  // gathered blocks (block * local_size) → output (shard * size)
};
// `relays`: of those sites only that are of one size, where each rank gets what its counterpart gets. What
// goes from rank to rank is cut in as many pieces as there are turns.
AllGatherLayout all_gather_layout(const Topology& topology, std::uint64_t shard,
                                  const RelayTurns& relays = {});

}  // namespace geocomm::collective
