#include "collective/policy/relay_paths.h"

#include <algorithm>
#include <utility>

namespace geocomm::collective {

namespace {

constexpr double kWorthwhileGain = 2.0;
// An owner has as many chunks at least (reduce_plan.cc), where there are enough elements.
constexpr std::size_t kMaxTurns = 4;

// What has been given out of the links so far.
class RelayChooser {
 public:
  explicit RelayChooser(const LinkMatrix& links)
      : links_(links),
        over_(links.sites * links.sites, -1),
        passing_(links.sites * links.sites, 0),
        passing_at_(links.sites, 0) {}

  void choose_for(std::size_t from, std::size_t to) {
    if (passing_[from * links_.sites + to] > 0) return;  // part of a path
    std::size_t best = links_.sites;
    double best_rate = kWorthwhileGain * links_.rate(from, to);
    for (std::size_t relay = 0; relay < links_.sites; ++relay) {
      if (relay == from || relay == to || over(from, relay) >= 0 || over(relay, to) >= 0) continue;
      const double rate = path_rate(from, relay, to);
      if (rate <= best_rate) continue;
      best = relay;
      best_rate = rate;
    }
    if (best == links_.sites) return;
    over_[from * links_.sites + to] = static_cast<int>(best);
    ++passing_[from * links_.sites + best];
    ++passing_[best * links_.sites + to];
    ++passing_at_[best];
  }

  std::vector<int> take() { return std::move(over_); }

 private:
  int over(std::size_t from, std::size_t to) const { return over_[from * links_.sites + to]; }

  double link_rate(std::size_t from, std::size_t to) const {
    return links_.rate(from, to) / (1.0 + passing_[from * links_.sites + to]);
  }

  // The relay's line carries what it sends to all others too.
  double path_rate(std::size_t from, std::size_t relay, std::size_t to) const {
    const double line =
        links_.access(relay) / (static_cast<double>(links_.sites) + static_cast<double>(passing_at_[relay]));
    return std::min({link_rate(from, relay), link_rate(relay, to), line});
  }

  const LinkMatrix& links_;
  std::vector<int> over_;
  std::vector<int> passing_;  // per link: paths over it
  std::vector<int> passing_at_;
};

}  // namespace

const RelayPaths& RelayTurns::at(std::size_t turn) const {
  static const RelayPaths kStraight;
  return turns.empty() ? kStraight : turns[turn % turns.size()];
}

bool RelayPaths::any() const {
  return std::ranges::any_of(over, [](int site) { return site >= 0; });
}

RelayPaths choose_relays(const LinkMatrix& links) {
  std::vector<std::pair<double, std::size_t>> slowest_first;
  for (std::size_t from = 0; from < links.sites; ++from) {
    for (std::size_t to = 0; to < links.sites; ++to) {
      if (from != to) slowest_first.emplace_back(links.rate(from, to), from * links.sites + to);
    }
  }
  std::ranges::sort(slowest_first);
  RelayChooser chooser(links);
  for (const auto& [rate, link] : slowest_first) chooser.choose_for(link / links.sites, link % links.sites);
  return {links.sites, chooser.take()};
}

RelayTurns relays_by_region(const LinkMatrix& links) {
  const std::size_t sites = links.sites;
  std::vector<std::vector<std::size_t>> members(sites);
  std::vector<std::size_t> place(sites);
  for (std::size_t site = 0; site < sites; ++site) {
    place[site] = members[links.regions[site]].size();
    members[links.regions[site]].push_back(site);
  }
  std::size_t largest = 0;
  for (const std::vector<std::size_t>& region : members) largest = std::max(largest, region.size());
  RelayTurns all;
  for (std::size_t turn = 0; turn < std::min(largest, kMaxTurns); ++turn) {
    RelayPaths& paths = all.turns.emplace_back(RelayPaths{
        sites, std::vector<int>(sites * sites, -1), std::vector<bool>(sites * sites, false), links.regions});
    for (std::size_t owner = 0; owner < sites; ++owner) {
      for (std::size_t site = 0; site < sites; ++site) {
        if (!links.crosses(owner, site)) continue;
        const std::vector<std::size_t>& region = members[links.regions[site]];
        // One further on the way back: two regions then meet over twice as many links.
        const std::size_t back = links.regions[owner] > links.regions[site] ? 1 : 0;
        const std::size_t head = region[(place[owner] + back + turn) % region.size()];
        if (head == site) continue;
        paths.over[owner * sites + site] = static_cast<int>(head);
        paths.adds[owner * sites + head] = true;
      }
    }
  }
  return all;
}

RelayPaths relays_for(double bytes, const LinkMatrix& links, const RelayPaths& relays) {
  RelayPaths chosen = relays;
  for (std::size_t pair = 0; pair < chosen.over.size(); ++pair) {
    const std::size_t from = pair / links.sites;
    const std::size_t to = pair % links.sites;
    const int over = chosen.over[pair];
    if (over < 0) continue;
    const auto relay = static_cast<std::size_t>(over);
    const double straight = links.delay(from, to) + bytes / links.rate(from, to);
    const double rate = std::min(links.rate(from, relay), links.rate(relay, to) / 2);
    if (straight <= path_delay(links, relays, from, to) + bytes / rate) chosen.over[pair] = -1;
  }
  return chosen;
}

double path_delay(const LinkMatrix& links, const RelayPaths& relays, std::size_t from, std::size_t to) {
  const int over = relays.via(from, to);
  if (over < 0) return links.delay(from, to);
  const auto relay = static_cast<std::size_t>(over);
  return links.delay(from, relay) + links.delay(relay, to);
}

double path_delay(const LinkMatrix& links, const RelayTurns& relays, std::size_t from, std::size_t to) {
  double longest = 0.0;
  for (std::size_t turn = 0; turn < relays.count(); ++turn) {
    longest = std::max(longest, path_delay(links, relays.at(turn), from, to));
  }
  return longest;
}

namespace {

// Of all chunks of a turn.
double broadcast_load_at(const RelayPaths& relays, std::size_t sites, std::size_t from, std::size_t to) {
  if (relays.via(from, to) >= 0) return 0.0;
  double load = 1.0;
  for (std::size_t origin = 0; origin < sites; ++origin) {
    if (origin != to && relays.via(origin, to) == static_cast<int>(from)) load += 1.0;
  }
  return load;
}

void add_owner_load(std::vector<double>& load, const RelayPaths& relays, std::size_t from, std::size_t to,
                    bool returns) {
  const std::size_t sites = load.size();
  if (relays.has_adders()) {
    // To each owner a tree: sums go up, results down.
    const auto next = [&](std::size_t site, std::size_t owner) {
      const int over = relays.via(owner, site);
      return over < 0 ? owner : static_cast<std::size_t>(over);
    };
    for (std::size_t owner = 0; owner < sites; ++owner) {
      if (from != owner && next(from, owner) == to) load[owner] += 1.0;
      if (returns && to != owner && next(to, owner) == from) load[owner] += 1.0;
    }
    return;
  }
  if (relays.via(from, to) >= 0) return;
  // What `from` contributes to the owner `to`, and the results that it owns.
  load[to] += 1.0;
  if (returns) load[from] += 1.0;
  for (std::size_t other = 0; other < sites; ++other) {
    if (other == from || other == to) continue;
    // On the way to `other`: contributions; results are at `to` anyway.
    if (relays.via(from, other) == static_cast<int>(to)) load[other] += 1.0;
    // On the way from `other`: contributions and results.
    if (relays.via(other, to) == static_cast<int>(from)) {
      load[to] += 1.0;
      if (returns) load[other] += 1.0;
    }
  }
}

}  // namespace

double broadcast_load(const RelayTurns& relays, std::size_t sites, std::size_t from, std::size_t to) {
  double load = 0.0;
  for (std::size_t turn = 0; turn < relays.count(); ++turn) {
    load += broadcast_load_at(relays.at(turn), sites, from, to);
  }
  return load / static_cast<double>(relays.count());
}

std::vector<double> owner_load(const RelayTurns& relays, std::size_t sites, std::size_t from, std::size_t to,
                               bool returns) {
  std::vector<double> load(sites, 0.0);
  for (std::size_t turn = 0; turn < relays.count(); ++turn) {
    add_owner_load(load, relays.at(turn), from, to, returns);
  }
  for (double& part : load) part /= static_cast<double>(relays.count());
  return load;
}

}  // namespace geocomm::collective
