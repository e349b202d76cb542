// How much of a reduction each site should own (wan.md's small linear program), solved exactly.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "collective/policy/link_matrix.h"
#include "collective/policy/relay_paths.h"

namespace geocomm::collective {

// What may be the busiest of an owner-reduces exchange, by the shares that sites own:
//   link i-j carries (w_i + w_j) of the data both ways, site i sends and receives (1 + (N-2) w_i) of it, and
//   each what it relays (owner_load()).
class OwnerLoads {
 public:
  // `links` are valid and have two sites or more. `returns`: as of owner_load().
  explicit OwnerLoads(const LinkMatrix& links, const RelayTurns& relays = {}, bool returns = true);

  // Shares of the sites, sum 1, with which that is busy for the least time. A site whose links are slow gets
  // less, or nothing; sites with `may_own` false get nothing. At least one may. Equal numbers give equal
  // bits on every machine. Adds to `products` the multiplications that it took.
  std::vector<double> best_shares(const std::vector<bool>& may_own, std::size_t* products = nullptr) const;

  // Seconds per byte that such an exchange takes, latencies left out.
  double seconds_per_byte(const std::vector<double>& shares) const;

 private:
  // A link, or the line of a site.
  struct Line {
    std::vector<std::pair<std::size_t, double>> loads;  // by owner, of its share
    double bytes_per_s;
  };
  void add(const std::vector<double>& load, double bytes_per_s);

  std::size_t sites_;
  double fastest_link_ = 0.0;
  std::vector<Line> lines_;
};

}  // namespace geocomm::collective
