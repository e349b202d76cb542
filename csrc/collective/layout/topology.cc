#include "collective/layout/topology.h"

#include <algorithm>
#include <utility>

#include "core/str.h"

namespace geocomm::collective {

using core::Result;
using core::Status;
using core::StatusCode;
using core::str;

Result<Topology> Topology::create(int rank, std::vector<int> site_of_rank,
                                  std::vector<std::string> site_names) {
  const int size = static_cast<int>(site_of_rank.size());
  if (rank < 0 || rank >= size) {
    return Status(StatusCode::InvalidArgument, str("rank ", rank, " of a group of ", size, " ranks"));
  }
  Topology topology;
  topology.rank_ = rank;
  std::vector<int> renumbered(site_names.size(), -1);
  for (int r = 0; r < size; ++r) {
    const int named = site_of_rank[static_cast<std::size_t>(r)];
    if (named < 0 || static_cast<std::size_t>(named) >= site_names.size()) {
      return Status(StatusCode::InvalidArgument, str("rank ", r, " is at site number ", named, ", but ",
                                                     site_names.size(), " sites have names"));
    }
    int& site = renumbered[static_cast<std::size_t>(named)];
    if (site < 0) {
      site = topology.site_count();
      topology.ranks_of_site_.emplace_back();
      topology.site_names_.push_back(std::move(site_names[static_cast<std::size_t>(named)]));
    }
    auto& ranks = topology.ranks_of_site_[static_cast<std::size_t>(site)];
    topology.local_rank_of_.push_back(static_cast<int>(ranks.size()));
    topology.site_of_rank_.push_back(site);
    ranks.push_back(r);
  }
  for (std::size_t named = 0; named < renumbered.size(); ++named) {
    if (renumbered[named] < 0) {
      return Status(StatusCode::InvalidArgument,
                    str("no rank of the group is at site '", site_names[named], "': leave it out"));
    }
  }
  return topology;
}

int Topology::largest_site_size() const {
  std::size_t largest = 0;
  for (const auto& ranks : ranks_of_site_) largest = std::max(largest, ranks.size());
  return static_cast<int>(largest);
}

}  // namespace geocomm::collective
