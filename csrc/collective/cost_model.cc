#include "collective/cost_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "collective/owner_shares.h"
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

ReduceScheme broadcast_all(const LinkMatrix& links) {
  const std::size_t sites = links.sites;
  ReduceScheme scheme;
  double farthest = 0.0;
  for (std::size_t from = 0; from < sites; ++from) {
    for (std::size_t to = 0; to < sites; ++to) {
      if (from == to) continue;
      scheme.lines.push_back({links.delay(from, to), 1.0 / links.rate(from, to)});
      farthest = std::max(farthest, links.delay(from, to));
    }
  }
  for (std::size_t site = 0; site < sites; ++site) {
    scheme.lines.push_back({farthest, static_cast<double>(sites - 1) / links.access(site)});
  }
  scheme.lines = upper_envelope(std::move(scheme.lines));
  return scheme;
}

// From the last contribution on its way to the result being everywhere.
double latency_through(const LinkMatrix& links, std::size_t owner) {
  double in = 0.0;
  double out = 0.0;
  for (std::size_t site = 0; site < links.sites; ++site) {
    if (site == owner) continue;
    in = std::max(in, links.delay(site, owner));
    out = std::max(out, links.delay(owner, site));
  }
  return in + out;
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

ReduceScheme owner_reduces(const LinkMatrix& links, const std::vector<bool>& may_own) {
  ReduceScheme scheme;
  scheme.shares = in_parts(solve_owner_shares(links, may_own));
  std::vector<double> shares;
  double latency = 0.0;
  for (std::size_t site = 0; site < links.sites; ++site) {
    shares.push_back(static_cast<double>(scheme.shares[site]) / kShareParts);
    if (scheme.shares[site] > 0) latency = std::max(latency, latency_through(links, site));
  }
  scheme.lines = {{latency, owner_seconds_per_byte(links, shares)}};
  return scheme;
}

}  // namespace

double ReduceScheme::seconds(double bytes) const {
  double most = 0.0;
  for (const Line& line : lines) most = std::max(most, line.latency_s + line.s_per_byte * bytes);
  return most;
}

Result<CostModel> CostModel::create(LinkMatrix links) {
  GEOCOMM_RETURN_IF_ERROR(links.validate());
  if (links.sites < 2) {
    return Status(StatusCode::Unsupported, str("a cost model of ", links.sites, " sites: it takes two"));
  }
  return CostModel(std::move(links));
}

CostModel::CostModel(LinkMatrix links) : links_(std::move(links)) {
  schemes_.push_back(broadcast_all(links_));
  // Between two sites both ways move the same bytes, and an owner adds a latency.
  if (links_.sites > 2) add_owner_schemes();
}

void CostModel::add_owner_schemes() {
  std::vector<double> latencies;
  for (std::size_t site = 0; site < links_.sites; ++site) latencies.push_back(latency_through(links_, site));
  std::vector<double> bounds = latencies;
  std::ranges::sort(bounds, std::greater<>());
  double last = 0.0;
  for (const double bound : bounds) {
    if (schemes_.size() > kMaxOwnerSets) break;
    if (last > 0.0 && bound > last * kSameLatency) continue;
    last = bound;
    std::vector<bool> may_own;
    for (const double latency : latencies) may_own.push_back(latency <= bound);
    schemes_.push_back(owner_reduces(links_, may_own));
  }
}

const ReduceScheme& CostModel::choose(double bytes) const {
  const ReduceScheme* best = &schemes_.front();
  double least = best->seconds(bytes);
  for (const ReduceScheme& scheme : schemes_) {
    const double seconds = scheme.seconds(bytes);
    if (seconds < least * kWorthwhile) {
      best = &scheme;
      least = seconds;
    }
  }
  return *best;
}

}  // namespace geocomm::collective
