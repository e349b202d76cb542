// What an operation over the WAN costs, by each way of carrying it out, and which way is the fastest. Made
// once per epoch from the link matrix; pure arithmetic, the same on every rank.
//
//                             bytes out per site   latencies  requantizations
// all-reduce, broadcast-all   (N-1) S              1          0
// all-reduce, owner-reduces   (1 + (N-2) w) S      2          1     S: (compressed) bytes of a site,
// reduce-scatter              (N-1) S / N          1          0     w: the site's share
// all-gather                  (N-1) S              1          0
//
// Where slow links have a relay, all are looked at with it and without (relay_paths.h). Where sites share
// regions, all are also looked at with two levels: what crosses between two regions crosses once. Of
// owner-reduces and of a reduce-scatter a region's sum crosses in place of its sites' frames, which takes a
// latency in the regions each way, and one requantization more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/policy/link_matrix.h"
#include "collective/policy/relay_paths.h"
#include "core/status.h"

namespace geocomm::collective {

// Shares are whole numbers of this many parts.
inline constexpr std::uint32_t kShareParts = 1u << 16;

// What sites want of each other's data.
enum class Pattern : std::uint8_t {
  AllReduce,
  ReduceScatter,  // each site the sum of an equal part
  AllGather,      // all that the others have
};

// One way to carry out an operation.
struct ReduceScheme {
  // Owner-reduces: each site's share in kShareParts, a slow site's is 0. Of a reduce-scatter: equal shares.
  // Empty: broadcast-all.
  std::vector<std::uint32_t> shares;
  // The exchange takes as long as the slowest of these.
  struct Line {
    double latency_s = 0.0;
    double s_per_byte = 0.0;
  };
  std::vector<Line> lines;
  RelayTurns relays = {};  // which pairs of sites meet over a third one
  bool returns = true;     // owners send what they have summed up to all
  double dollars = 0.0;    // for each byte of a site's data, all sites together

  bool has_owners() const { return !shares.empty(); }
  // Whether sums of regions go to the owners.
  bool has_two_levels() const { return has_owners() && relays.has_adders(); }
  // What each link carries, [from * sites + to], as parts of one site's data.
  std::vector<double> link_loads(std::size_t sites) const;
  // For `bytes` compressed bytes of each site. `coding_s`: what the host takes beside it for what two levels
  // leave to it alone.
  double seconds(double bytes, double coding_s = 0.0) const;
};

// Thread-safe: does not change.
class CostModel {
 public:
  // InvalidArgument: as LinkMatrix::validate(); Unsupported: fewer than two sites.
  static core::Result<CostModel> create(LinkMatrix links);

  // The best way for `bytes` compressed bytes of each site: the fastest. Where bytes between regions have a
  // price, of the ways that take longer for the bytes than for their latency, the least time x dollars.
  // `coding_s`: as ReduceScheme::seconds().
  const ReduceScheme& choose(double bytes, Pattern pattern = Pattern::AllReduce, double coding_s = 0.0) const;
  // How long an all-reduce takes.
  double seconds(double bytes) const { return choose(bytes).seconds(bytes); }
  // Of the links, whether or not the fastest way uses them.
  const RelayPaths& relays() const { return relays_; }
  // All ways, first that without owners and relays.
  const std::vector<ReduceScheme>& schemes(Pattern pattern = Pattern::AllReduce) const {
    return schemes_[static_cast<std::size_t>(pattern)];
  }
  const LinkMatrix& links() const { return links_; }

 private:
  explicit CostModel(LinkMatrix links);
  void add_schemes(const RelayTurns& relays);
  void add(Pattern pattern, ReduceScheme scheme);
  double dollars(const ReduceScheme& scheme) const;
  LinkMatrix links_;
  RelayPaths relays_;
  std::array<std::vector<ReduceScheme>, 3> schemes_;  // by Pattern
};

}  // namespace geocomm::collective
