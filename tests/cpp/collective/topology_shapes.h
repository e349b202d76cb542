// Topologies for exhaustive tests: every combination of site sizes, with ranks in blocks and dealt out.
#pragma once

#include <string>
#include <vector>

#include "collective/layout/topology.h"

namespace geocomm::collective::testing {

// Group rank → site. Dealt out: rank 0 to site 0, rank 1 to site 1, ... as long as a site has room.
inline std::vector<int> sites_of_ranks(const std::vector<int>& site_sizes, bool dealt_out) {
  std::vector<int> sites;
  if (!dealt_out) {
    for (std::size_t site = 0; site < site_sizes.size(); ++site) {
      sites.insert(sites.end(), static_cast<std::size_t>(site_sizes[site]), static_cast<int>(site));
    }
    return sites;
  }
  for (int round = 0;; ++round) {
    const std::size_t before = sites.size();
    for (std::size_t site = 0; site < site_sizes.size(); ++site) {
      if (round < site_sizes[site]) sites.push_back(static_cast<int>(site));
    }
    if (sites.size() == before) return sites;
  }
}

inline std::vector<std::string> site_names(std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t site = 0; site < count; ++site)
    names.push_back(std::string(1, static_cast<char>('a' + site)));
  return names;
}

// One topology per rank of the group.
inline std::vector<Topology> topologies_of(const std::vector<int>& site_sizes, bool dealt_out) {
  const std::vector<int> sites = sites_of_ranks(site_sizes, dealt_out);
  std::vector<Topology> topologies;
  for (std::size_t rank = 0; rank < sites.size(); ++rank) {
    topologies.push_back(
        Topology::create(static_cast<int>(rank), sites, site_names(site_sizes.size())).value());
  }
  return topologies;
}

// All lists of 1 to max_sites sizes in [1, max_size].
inline std::vector<std::vector<int>> all_site_sizes(int max_sites, int max_size) {
  std::vector<std::vector<int>> all;
  std::vector<std::vector<int>> shorter = {{}};
  for (int sites = 1; sites <= max_sites; ++sites) {
    std::vector<std::vector<int>> longer;
    for (const auto& sizes : shorter) {
      for (int size = 1; size <= max_size; ++size) {
        longer.push_back(sizes);
        longer.back().push_back(size);
      }
    }
    all.insert(all.end(), longer.begin(), longer.end());
    shorter = std::move(longer);
  }
  return all;
}

}  // namespace geocomm::collective::testing
