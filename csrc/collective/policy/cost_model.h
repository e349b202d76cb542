// What a reduction over the WAN costs, by each way of carrying it out, and which way is the fastest. Made
// once per epoch from the link matrix; pure arithmetic, the same on every rank.
//
//                 bytes out per site   latencies  requantizations
// broadcast-all   (N-1) S              1          0
// owner-reduces   (1 + (N-2) w) S      2          1      S: compressed bytes of a site, w: the site's share
//
// Where slow links have a relay, both are looked at with it and without (relay_paths.h). Where sites share
// regions, both are also looked at with two levels: what crosses between two regions crosses once. Of
// owner-reduces a region's sum crosses in place of its sites' frames, which takes two latencies in the
// regions and one requantization more.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/policy/link_matrix.h"
#include "collective/policy/relay_paths.h"
#include "core/status.h"

namespace geocomm::collective {

// Shares are whole numbers of this many parts.
inline constexpr std::uint32_t kShareParts = 1u << 16;

// One way to carry out a reduction.
struct ReduceScheme {
  // Owner-reduces: each site's share in kShareParts, a slow site's is 0. Empty: broadcast-all.
  std::vector<std::uint32_t> shares;
  // The exchange takes as long as the slowest of these.
  struct Line {
    double latency_s = 0.0;
    double s_per_byte = 0.0;
  };
  std::vector<Line> lines;
  RelayPaths relays = {};  // which pairs of sites meet over a third one
  double dollars = 0.0;    // for each byte of a site's data, all sites together

  bool has_owners() const { return !shares.empty(); }
  // Whether sums of regions go to the owners.
  bool has_two_levels() const { return has_owners() && relays.has_adders(); }
  // What each link carries, [from * sites + to], as parts of one site's data.
  std::vector<double> link_loads(std::size_t sites) const;
  // For `bytes` compressed bytes of each site.
  double seconds(double bytes) const;
};

// Thread-safe: does not change.
class CostModel {
 public:
  // InvalidArgument: as LinkMatrix::validate(); Unsupported: fewer than two sites.
  static core::Result<CostModel> create(LinkMatrix links);

  // The best way for `bytes` compressed bytes of each site: the fastest. Where bytes between regions have a
  // price, of the ways that take longer for the bytes than for their latency, the least time x dollars.
  const ReduceScheme& choose(double bytes) const;
  // How long that takes.
  double seconds(double bytes) const { return choose(bytes).seconds(bytes); }
  // Of the links, whether or not the fastest way uses them.
  const RelayPaths& relays() const { return relays_; }
  // All ways, broadcast-all without relays first.
  const std::vector<ReduceScheme>& schemes() const { return schemes_; }
  const LinkMatrix& links() const { return links_; }

 private:
  explicit CostModel(LinkMatrix links);
  void add_schemes(const RelayPaths& relays);
  double dollars(const ReduceScheme& scheme) const;
  LinkMatrix links_;
  RelayPaths relays_;
  std::vector<ReduceScheme> schemes_;
};

}  // namespace geocomm::collective
