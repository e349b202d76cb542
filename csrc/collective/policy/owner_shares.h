// How much of a reduction each site should own (wan.md's small linear program), solved exactly.
#pragma once

#include <vector>

#include "collective/policy/link_matrix.h"
#include "collective/policy/relay_paths.h"

namespace geocomm::collective {

// Shares of the sites, sum 1, that minimise the time that an owner-reduces exchange keeps its busiest link:
//   link i-j carries (w_i + w_j) of the data both ways, site i sends and receives (1 + (N-2) w_i) of it, and
//   each what it relays (owner_load()).
// A site whose links are slow gets less, or nothing; sites with `may_own` false get nothing. At least one
// may; `links` are valid and have two sites or more. Equal numbers give equal bits on every machine.
std::vector<double> solve_owner_shares(const LinkMatrix& links, const std::vector<bool>& may_own,
                                       const RelayTurns& relays = {});

// Seconds per byte that such an exchange takes, latencies left out. `returns`: as of owner_load().
double owner_seconds_per_byte(const LinkMatrix& links, const std::vector<double>& shares,
                              const RelayTurns& relays = {}, bool returns = true);

}  // namespace geocomm::collective
