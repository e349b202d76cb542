// Link matrices for tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "collective/policy/link_matrix.h"

namespace geocomm::collective::testing {

// Under which way all reductions of three and more sites go.
enum class Way { BroadcastAll, EqualOwners, UnequalOwners, RelayedBroadcast, RelayedOwners, TwoLevels };

// Latency, or bandwidth, is all that counts. Unequal: the last site's links are slow, each as another, so
// that it owns nothing and the others own ever more. Relayed: the first site reaches all others (broadcast),
// or the last one (owners, of four sites or more), over the second. Two levels, of four sites or more: every
// two sites are a region, with slow links to all others.
inline LinkMatrix links_for(Way way, std::size_t sites) {
  if (way == Way::BroadcastAll) return LinkMatrix::uniform(sites, 1e12, 1.0);
  if (way == Way::RelayedBroadcast || way == Way::RelayedOwners) {
    LinkMatrix slow = LinkMatrix::uniform(sites, 1e8, way == Way::RelayedBroadcast ? 0.5 : 0.0);
    for (std::size_t site = 1; site < sites; ++site) {
      slow.one_way_s[site] = slow.one_way_s[site * sites] = 0.0;  // so that no owner is near
      const bool is_slow = way == Way::RelayedBroadcast ? site > 1 : site + 1 == sites && site > 1;
      if (is_slow) slow.bytes_per_s[site] = slow.bytes_per_s[site * sites] = 1.0;
    }
    return slow;
  }
  LinkMatrix links = LinkMatrix::uniform(sites, 1e6, 0.0);
  if (way == Way::TwoLevels) {
    if (sites < 4) return links;
    for (std::size_t site = 0; site < sites; ++site) {
      links.regions.push_back(static_cast<std::uint32_t>(site / 2));
      const std::size_t near = site ^ 1u;
      if (near < sites) links.bytes_per_s[site * sites + near] = 1e9;
    }
    return links;
  }
  if (way == Way::EqualOwners) return links;
  for (std::size_t from = 0; from < sites; ++from) {
    for (std::size_t to = 0; to < sites; ++to) {
      double& rate = links.bytes_per_s[from * sites + to];
      if (from + 1 == sites || to + 1 == sites) rate = 1e5 * static_cast<double>(1 + std::min(from, to));
    }
  }
  return links;
}

inline const char* name_of(Way way) {
  switch (way) {
    case Way::BroadcastAll:
      return "broadcast_all";
    case Way::EqualOwners:
      return "equal_owners";
    case Way::UnequalOwners:
      return "unequal_owners";
    case Way::RelayedBroadcast:
      return "relayed_broadcast";
    case Way::RelayedOwners:
      return "relayed_owners";
    case Way::TwoLevels:
      return "two_levels";
  }
  return "";
}

}  // namespace geocomm::collective::testing
