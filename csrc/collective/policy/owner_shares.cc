// With v = w / T the program becomes a packing program: maximise sum(v) = 1 / T, where
//   v_i + v_j <= b_ij                    for every pair of sites, b the slower of the two directions
//   sum(v) + (N - 2) v_i <= access_i     for every site with a known limit
// and v >= 0; with relays, links and sites carry what owner_load() says instead. All right-hand sides are
// positive, so the simplex method starts at v = 0. Bland's rule keeps it from going in circles where links
// are alike. Only + - * / and comparisons: IEEE gives all ranks the same bits.
#include "collective/policy/owner_shares.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace geocomm::collective {

namespace {

constexpr double kEpsilon = 1e-9;

// Calls visit(load per share, limit) for whatever may be the busiest: links, and the lines of sites.
template <typename Visit>
void for_each_limit(const LinkMatrix& links, const RelayTurns& relays, bool returns, Visit&& visit) {
  const std::size_t sites = links.sites;
  std::vector<std::vector<double>> sent(sites, std::vector<double>(sites, 0.0));
  auto received = sent;
  const auto add = [&](std::vector<double>& sum, const std::vector<double>& load) {
    for (std::size_t site = 0; site < sites; ++site) sum[site] += load[site];
  };
  for (std::size_t i = 0; i < sites; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const std::vector<double> there = owner_load(relays, sites, i, j, returns);
      const std::vector<double> back = owner_load(relays, sites, j, i, returns);
      if (there == back) {
        visit(there, std::min(links.rate(i, j), links.rate(j, i)));
      } else {
        visit(there, links.rate(i, j));
        visit(back, links.rate(j, i));
      }
      add(sent[i], there);
      add(received[j], there);
      add(sent[j], back);
      add(received[i], back);
    }
  }
  for (std::size_t i = 0; i < sites; ++i) {
    if (std::isinf(links.access(i))) continue;
    visit(sent[i], links.access(i));
    if (received[i] != sent[i]) visit(received[i], links.access(i));
  }
}

// maximise sum(v), rows * v <= limits. The tableau holds the nonbasic columns only, a pivot swaps two.
class PackingProgram {
 public:
  explicit PackingProgram(std::size_t variables) : columns_(variables), gain_(variables, 1.0) {
    for (std::size_t v = 0; v < variables; ++v) nonbasic_.push_back(v);
  }

  void add(std::vector<double> row, double limit) {
    row.push_back(limit);
    rows_.push_back(std::move(row));
    basic_.push_back(columns_ + basic_.size());
  }

  std::vector<double> solve() {
    for (std::size_t column = entering(); column < columns_; column = entering()) {
      const std::size_t row = leaving(column);
      if (row == rows_.size()) break;  // unbounded: a program without rows
      pivot(row, column);
    }
    std::vector<double> values(columns_, 0.0);
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (basic_[row] < columns_) values[basic_[row]] = std::max(rows_[row][columns_], 0.0);
    }
    return values;
  }

 private:
  // The lowest-numbered variable that would add to the sum.
  std::size_t entering() const {
    std::size_t best = columns_;
    for (std::size_t c = 0; c < columns_; ++c) {
      if (gain_[c] > kEpsilon && (best == columns_ || nonbasic_[c] < nonbasic_[best])) best = c;
    }
    return best;
  }

  // The row that limits it first; the lowest-numbered variable where several do.
  std::size_t leaving(std::size_t column) const {
    std::size_t best = rows_.size();
    double best_ratio = std::numeric_limits<double>::infinity();
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (rows_[r][column] <= kEpsilon) continue;
      const double ratio = rows_[r][columns_] / rows_[r][column];
      if (ratio < best_ratio - kEpsilon ||
          (best < rows_.size() && ratio <= best_ratio + kEpsilon && basic_[r] < basic_[best])) {
        best = r;
        best_ratio = ratio;
      }
    }
    return best;
  }

  void pivot(std::size_t row, std::size_t column) {
    std::vector<double>& by = rows_[row];
    const double factor = 1.0 / by[column];
    by[column] = 1.0;
    for (double& value : by) value *= factor;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (r != row) eliminate(rows_[r], by, column);
    }
    eliminate(gain_, by, column);
    std::swap(basic_[row], nonbasic_[column]);
  }

  // `line` may leave out the limit.
  static void eliminate(std::vector<double>& line, const std::vector<double>& by, std::size_t column) {
    const double times = line[column];
    if (times == 0.0) return;
    line[column] = 0.0;
    for (std::size_t c = 0; c < line.size(); ++c) line[c] -= times * by[c];
  }

  const std::size_t columns_;
  std::vector<std::vector<double>> rows_;  // coefficients, then the limit
  std::vector<double> gain_;
  std::vector<std::size_t> basic_;     // per row: its variable; below columns_ the program's own, else slack
  std::vector<std::size_t> nonbasic_;  // per column
};

}  // namespace

std::vector<double> solve_owner_shares(const LinkMatrix& links, const std::vector<bool>& may_own,
                                       const RelayTurns& relays) {
  const std::size_t sites = links.sites;
  std::vector<std::size_t> owners;
  for (std::size_t site = 0; site < sites; ++site) {
    if (may_own[site]) owners.push_back(site);
  }
  double fastest = 0.0;
  for (std::size_t i = 0; i < sites; ++i) {
    for (std::size_t j = 0; j < sites; ++j) {
      if (i != j) fastest = std::max(fastest, links.rate(i, j));
    }
  }
  PackingProgram program(owners.size());
  for_each_limit(links, relays, true, [&](const std::vector<double>& load, double limit) {
    std::vector<double> row;
    for (const std::size_t owner : owners) row.push_back(load[owner]);
    const bool is_used = std::ranges::any_of(row, [](double part) { return part > 0.0; });
    if (is_used) program.add(std::move(row), limit / fastest);
  });
  const std::vector<double> solved = program.solve();
  const double sum = std::accumulate(solved.begin(), solved.end(), 0.0);
  std::vector<double> shares(sites, 0.0);
  for (std::size_t o = 0; o < owners.size(); ++o) {
    shares[owners[o]] = sum > 0.0 ? solved[o] / sum : 1.0 / static_cast<double>(owners.size());
  }
  return shares;
}

double owner_seconds_per_byte(const LinkMatrix& links, const std::vector<double>& shares,
                              const RelayTurns& relays, bool returns) {
  double seconds = 0.0;
  for_each_limit(links, relays, returns, [&](const std::vector<double>& load, double limit) {
    seconds = std::max(seconds, std::inner_product(load.begin(), load.end(), shares.begin(), 0.0) / limit);
  });
  return seconds;
}

}  // namespace geocomm::collective
