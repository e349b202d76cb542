// With v = w / T the program becomes a packing program: maximise sum(v) = 1 / T, where
//   v_i + v_j <= b_ij                    for every pair of sites, b the slower of the two directions
//   sum(v) + (N - 2) v_i <= access_i     for every site with a known limit
// and v >= 0; with relays, links and sites carry what owner_load() says instead. All right-hand sides are
// positive. Only + - * / and comparisons: IEEE gives all ranks the same bits.
#include "collective/policy/owner_shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "collective/policy/packing_program.h"

namespace geocomm::collective {

OwnerLoads::OwnerLoads(const LinkMatrix& links, const RelayTurns& relays, bool returns)
    : sites_(links.sites) {
  std::vector<std::vector<double>> sent(sites_, std::vector<double>(sites_, 0.0));
  auto received = sent;
  const auto add_to = [&](std::vector<double>& sum, const std::vector<double>& load) {
    for (std::size_t site = 0; site < sites_; ++site) sum[site] += load[site];
  };
  for (std::size_t i = 0; i < sites_; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const std::vector<double> there = owner_load(relays, sites_, i, j, returns);
      const std::vector<double> back = owner_load(relays, sites_, j, i, returns);
      if (there == back) {
        add(there, std::min(links.rate(i, j), links.rate(j, i)));
      } else {
        add(there, links.rate(i, j));
        add(back, links.rate(j, i));
      }
      fastest_link_ = std::max({fastest_link_, links.rate(i, j), links.rate(j, i)});
      add_to(sent[i], there);
      add_to(received[j], there);
      add_to(sent[j], back);
      add_to(received[i], back);
    }
  }
  for (std::size_t i = 0; i < sites_; ++i) {
    if (std::isinf(links.access(i))) continue;
    add(sent[i], links.access(i));
    if (received[i] != sent[i]) add(received[i], links.access(i));
  }
}

void OwnerLoads::add(const std::vector<double>& load, double bytes_per_s) {
  Line& line = lines_.emplace_back(Line{{}, bytes_per_s});
  for (std::size_t owner = 0; owner < sites_; ++owner) {
    if (load[owner] > 0.0) line.loads.emplace_back(owner, load[owner]);
  }
}

std::vector<double> OwnerLoads::best_shares(const std::vector<bool>& may_own, std::size_t* products) const {
  std::vector<std::size_t> number(sites_);
  std::vector<std::size_t> owners;
  for (std::size_t site = 0; site < sites_; ++site) {
    number[site] = owners.size();
    if (may_own[site]) owners.push_back(site);
  }
  PackingProgram program(owners.size());
  for (const Line& line : lines_) {
    PackingProgram::Row row;
    for (const auto& [owner, load] : line.loads) {
      if (may_own[owner]) row.push_back({number[owner], load});
    }
    if (!row.empty()) program.add(std::move(row), line.bytes_per_s / fastest_link_);
  }
  const std::vector<double> solved = program.solve();
  if (products != nullptr) *products += program.products();
  const double sum = std::accumulate(solved.begin(), solved.end(), 0.0);
  std::vector<double> shares(sites_, 0.0);
  for (std::size_t o = 0; o < owners.size(); ++o) {
    shares[owners[o]] = sum > 0.0 ? solved[o] / sum : 1.0 / static_cast<double>(owners.size());
  }
  return shares;
}

double OwnerLoads::seconds_per_byte(const std::vector<double>& shares) const {
  double seconds = 0.0;
  for (const Line& line : lines_) {
    double bytes = 0.0;
    for (const auto& [owner, load] : line.loads) bytes += load * shares[owner];
    seconds = std::max(seconds, bytes / line.bytes_per_s);
  }
  return seconds;
}

}  // namespace geocomm::collective
