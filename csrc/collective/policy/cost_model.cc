#include "collective/policy/cost_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "collective/policy/owner_shares.h"
#include "core/str.h"

namespace geocomm::collective {

using core::Result;
using core::Status;
using core::StatusCode;
using core::str;

namespace {

// How many sets of owners are looked at: with far sites, without the farthest, and so on.
constexpr std::size_t kMaxOwnerSets = 8;
// Owner sets whose latencies differ by less than this part are not told apart.
constexpr double kSameLatency = 0.99;
// Ways are only left for another that is this much faster: of equals the first, which loses least.
constexpr double kWorthwhile = 0.995;
// Two levels quantize once more, so they have to be worth that (as geocomm/group/planning/local_estimate.py).
constexpr double kWorthAnotherCoding = 0.9;
// From how many latencies on an exchange is one of bytes, whose price counts.
constexpr double kManyLatencies = 2.0;

// Leaves the lines that are the slowest somewhere.
std::vector<ReduceScheme::Line> upper_envelope(std::vector<ReduceScheme::Line> lines) {
  std::ranges::sort(lines, [](const auto& a, const auto& b) {
    return std::pair(a.s_per_byte, a.latency_s) > std::pair(b.s_per_byte, b.latency_s);
  });
  std::vector<ReduceScheme::Line> kept;
  for (const auto& line : lines) {
    if (kept.empty() || line.latency_s > kept.back().latency_s) kept.push_back(line);
  }
  return kept;
}

// Over which of the turns `from` reaches `to` by way of `over`.
bool is_relayed(const RelayTurns& relays, std::size_t from, std::size_t over, std::size_t to) {
  return std::ranges::any_of(
      relays.turns, [&](const RelayPaths& turn) { return turn.via(from, to) == static_cast<int>(over); });
}

ReduceScheme broadcast_all(const LinkMatrix& links, const RelayTurns& relays) {
  const std::size_t sites = links.sites;
  ReduceScheme scheme;
  scheme.relays = relays;
  std::vector<double> sent(sites, 0.0);
  std::vector<double> received(sites, 0.0);
  double farthest = 0.0;
  for (std::size_t from = 0; from < sites; ++from) {
    for (std::size_t to = 0; to < sites; ++to) {
      if (from == to) continue;
      const double load = broadcast_load(relays, sites, from, to);
      sent[from] += load;
      received[to] += load;
      double latency = path_delay(links, relays, from, to);
      farthest = std::max(farthest, latency);
      if (load == 0.0) continue;
      // The last that comes over the link may have come from afar.
      for (std::size_t origin = 0; origin < sites; ++origin) {
        if (origin == to || !is_relayed(relays, origin, from, to)) continue;
        latency = std::max(latency, path_delay(links, relays, origin, to));
      }
      scheme.lines.push_back({latency, load / links.rate(from, to)});
    }
  }
  for (std::size_t site = 0; site < sites; ++site) {
    scheme.lines.push_back({farthest, std::max(sent[site], received[site]) / links.access(site)});
  }
  scheme.lines = upper_envelope(std::move(scheme.lines));
  return scheme;
}

// From the last contribution on its way to the sum being at its owner.
double latency_to(const LinkMatrix& links, const RelayTurns& relays, std::size_t owner) {
  double longest = 0.0;
  for (std::size_t turn = 0; turn < relays.count(); ++turn) {
    const RelayPaths& paths = relays.at(turn);
    for (std::size_t site = 0; site < links.sites; ++site) {
      if (site == owner) continue;
      // Sums go the way of the results, backwards.
      const int adder = paths.has_adders() ? paths.via(owner, site) : -1;
      const auto over = static_cast<std::size_t>(adder);
      longest = std::max(longest, adder < 0 ? path_delay(links, paths, site, owner)
                                            : links.delay(site, over) + links.delay(over, owner));
    }
  }
  return longest;
}

// And on to the result being everywhere.
double latency_through(const LinkMatrix& links, const RelayTurns& relays, std::size_t owner) {
  double out = 0.0;
  for (std::size_t site = 0; site < links.sites; ++site) {
    if (site != owner) out = std::max(out, path_delay(links, relays, owner, site));
  }
  return latency_to(links, relays, owner) + out;
}

// Rounded so that the sum stays whole: the largest remainders are rounded up.
std::vector<std::uint32_t> in_parts(const std::vector<double>& shares) {
  std::vector<std::uint32_t> parts;
  std::vector<std::pair<double, std::size_t>> remainders;
  for (std::size_t site = 0; site < shares.size(); ++site) {
    const double exact = shares[site] * kShareParts;
    parts.push_back(static_cast<std::uint32_t>(exact));
    remainders.emplace_back(-(exact - std::floor(exact)), site);
  }
  std::ranges::sort(remainders);
  const std::uint32_t sum = std::accumulate(parts.begin(), parts.end(), 0u);
  for (std::size_t i = 0; i < kShareParts - std::min(sum, kShareParts); ++i) {
    ++parts[remainders[i % remainders.size()].second];
  }
  return parts;
}

std::vector<double> fractions(const std::vector<std::uint32_t>& parts) {
  std::vector<double> shares;
  for (const std::uint32_t part : parts) shares.push_back(static_cast<double>(part) / kShareParts);
  return shares;
}

// Owner-reduces over these relays, by who may own. What it reads of the links is computed once.
class OwnerSchemes {
 public:
  OwnerSchemes(const LinkMatrix& links, const RelayTurns& relays) : relays_(relays) {
    loads_.emplace_back(links, relays);
    if (relays.count() > 1) loads_.emplace_back(links, relays.at(0));
    for (std::size_t site = 0; site < links.sites; ++site) {
      latencies_.push_back(latency_through(links, relays, site));
    }
  }

  // Through each site.
  const std::vector<double>& latencies() const { return latencies_; }

  ReduceScheme scheme(const std::vector<bool>& may_own) const {
    ReduceScheme scheme;
    scheme.relays = relays_;
    double seconds = std::numeric_limits<double>::infinity();
    for (const OwnerLoads& loads : loads_) {
      std::vector<std::uint32_t> shares = in_parts(loads.best_shares(may_own));
      const double these = loads_.front().seconds_per_byte(fractions(shares));
      if (these * kWorthwhile > seconds) continue;
      scheme.shares = std::move(shares);
      seconds = these;
    }
    double latency = 0.0;
    for (std::size_t site = 0; site < latencies_.size(); ++site) {
      if (scheme.shares[site] > 0) latency = std::max(latency, latencies_[site]);
    }
    scheme.lines = {{latency, seconds}};
    return scheme;
  }

 private:
  const RelayTurns& relays_;
  // Also of the first turn: where links are alike, owners in one region alone are as fast for the mean of all
  // turns; for one turn they are not.
  std::vector<OwnerLoads> loads_;
  std::vector<double> latencies_;
};

ReduceScheme reduce_scatter(const LinkMatrix& links, const RelayTurns& relays) {
  ReduceScheme scheme;
  scheme.relays = relays;
  scheme.returns = false;
  const std::vector<double> shares(links.sites, 1.0 / static_cast<double>(links.sites));
  scheme.shares = in_parts(shares);
  double latency = 0.0;
  for (std::size_t site = 0; site < links.sites; ++site) {
    latency = std::max(latency, latency_to(links, relays, site));
  }
  scheme.lines = {{latency, OwnerLoads(links, relays, false).seconds_per_byte(shares)}};
  return scheme;
}

}  // namespace

double ReduceScheme::seconds(double bytes, double coding_s) const {
  double most = 0.0;
  double latency = 0.0;
  for (const Line& line : lines) {
    most = std::max(most, line.latency_s + line.s_per_byte * bytes);
    latency = std::max(latency, line.latency_s);
  }
  return has_two_levels() ? std::max(most, latency + coding_s) : most;
}

std::vector<double> ReduceScheme::link_loads(std::size_t sites) const {
  std::vector<double> loads(sites * sites, 0.0);
  for (std::size_t from = 0; from < sites; ++from) {
    for (std::size_t to = 0; to < sites; ++to) {
      if (from == to) continue;
      double& load = loads[from * sites + to];
      if (!has_owners()) {
        load = broadcast_load(relays, sites, from, to);
        continue;
      }
      const std::vector<double> parts = owner_load(relays, sites, from, to, returns);
      load = std::inner_product(parts.begin(), parts.end(), shares.begin(), 0.0) / kShareParts;
    }
  }
  return loads;
}

Result<CostModel> CostModel::create(LinkMatrix links) {
  GEOCOMM_RETURN_IF_ERROR(links.validate());
  if (links.sites < 2) {
    return Status(StatusCode::Unsupported, str("a cost model of ", links.sites, " sites: it takes two"));
  }
  return CostModel(std::move(links));
}

CostModel::CostModel(LinkMatrix links) : links_(std::move(links)), relays_(choose_relays(links_)) {
  add_schemes({});
  if (relays_.any()) add_schemes(relays_);
  if (links_.regions.empty()) return;
  if (const RelayTurns by_region = relays_by_region(links_); by_region.any()) add_schemes(by_region);
}

void CostModel::add(Pattern pattern, ReduceScheme scheme) {
  scheme.dollars = dollars(scheme);
  schemes_[static_cast<std::size_t>(pattern)].push_back(std::move(scheme));
}

double CostModel::dollars(const ReduceScheme& scheme) const {
  if (links_.regions.empty() || links_.dollars_per_byte.empty()) return 0.0;
  const std::vector<double> loads = scheme.link_loads(links_.sites);
  double sum = 0.0;
  for (std::size_t from = 0; from < links_.sites; ++from) {
    for (std::size_t to = 0; to < links_.sites; ++to) {
      if (links_.crosses(from, to)) sum += loads[from * links_.sites + to] * links_.dollars_per_byte[from];
    }
  }
  return sum;
}

void CostModel::add_schemes(const RelayTurns& relays) {
  add(Pattern::AllGather, broadcast_all(links_, relays));
  add(Pattern::ReduceScatter, reduce_scatter(links_, relays));
  add(Pattern::AllReduce, broadcast_all(links_, relays));
  // Between two sites both ways move the same bytes, and an owner adds a latency.
  if (links_.sites <= 2) return;
  const OwnerSchemes owners(links_, relays);
  std::vector<double> bounds = owners.latencies();
  std::ranges::sort(bounds, std::greater<>());
  double last = 0.0;
  std::size_t sets = 0;
  for (const double bound : bounds) {
    if (sets == kMaxOwnerSets) break;
    if (last > 0.0 && bound > last * kSameLatency) continue;
    last = bound;
    ++sets;
    std::vector<bool> may_own;
    for (const double latency : owners.latencies()) may_own.push_back(latency <= bound);
    add(Pattern::AllReduce, owners.scheme(may_own));
  }
}

const ReduceScheme& CostModel::choose(double bytes, Pattern pattern, double coding_s) const {
  const std::vector<ReduceScheme>& all = schemes(pattern);
  const ReduceScheme* best = &all.front();
  const auto take_least = [&](auto cost, auto may_be) {
    for (const ReduceScheme& scheme : all) {
      if (!may_be(scheme)) continue;
      const bool codes_more = scheme.has_two_levels() && !best->has_two_levels();
      if (cost(scheme) < cost(*best) * (codes_more ? kWorthAnotherCoding : kWorthwhile)) best = &scheme;
    }
  };
  const auto seconds = [&](const ReduceScheme& scheme) { return scheme.seconds(bytes, coding_s); };
  take_least(seconds, [](const ReduceScheme&) { return true; });
  if (best->dollars == 0.0) return *best;
  take_least(
      [&](const ReduceScheme& scheme) { return seconds(scheme) * scheme.dollars; },
      [&](const ReduceScheme& scheme) { return seconds(scheme) >= kManyLatencies * scheme.seconds(0.0); });
  return *best;
}

}  // namespace geocomm::collective
