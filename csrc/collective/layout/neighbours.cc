#include "collective/layout/neighbours.h"

#include <cstddef>
#include <cstdint>

#include "collective/layout/layout.h"

namespace geocomm::collective {

std::set<int> neighbours_of(const Topology& topology) {
  constexpr std::uint64_t kManyElements = std::uint64_t{1} << 30;  // so that no stripe is empty
  std::set<int> result;
  for (const Stripe& stripe : stripes_of(topology, kManyElements)) {
    const auto& ranks = stripe.rank_of_site;
    if (ranks[static_cast<std::size_t>(topology.site())] == topology.rank())
      result.insert(ranks.begin(), ranks.end());
  }
  const auto& beside = topology.ranks_of(topology.site());
  const auto count = beside.size();
  const auto place = static_cast<std::size_t>(topology.local_rank());
  result.insert(beside[(place + 1) % count]);
  result.insert(beside[(place + count - 1) % count]);
  result.erase(topology.rank());
  return result;
}

}  // namespace geocomm::collective
