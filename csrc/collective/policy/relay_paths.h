// Pairs of sites whose frames go over a third site, because the link between the two is slow or lies between
// two regions, and what every link carries then. Pure arithmetic, the same on every rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "collective/policy/link_matrix.h"

namespace geocomm::collective {

struct RelayPaths {
  std::size_t sites = 0;
  // [from * sites + to]: the site between the two, -1: straight. Empty: all go straight. The two links of a
  // relayed path are never relayed themselves.
  std::vector<int> over = {};
  // [owner * sites + site]: whether the site adds up what the sites have for that owner to which it passes
  // the owner's results on; its sum goes to the owner in place of theirs. Empty: nobody adds up for others.
  std::vector<bool> adds = {};
  std::vector<std::uint32_t> regions = {};  // of the sites, where some add up for others

  bool has_adders() const { return !adds.empty(); }
  bool is_adder(std::size_t owner, std::size_t site) const {
    return has_adders() && adds[owner * sites + site];
  }
  int via(std::size_t from, std::size_t to) const { return over.empty() ? -1 : over[from * sites + to]; }
  bool any() const;
};

// Ways that chunks, or parts of a piece, take in turns, so that all links between two regions are busy.
struct RelayTurns {
  RelayTurns() = default;
  RelayTurns(RelayPaths always) : turns{std::move(always)} {}

  std::size_t count() const { return std::max<std::size_t>(turns.size(), 1); }
  const RelayPaths& at(std::size_t turn) const;
  bool any() const { return !turns.empty() && turns.front().any(); }
  bool has_adders() const { return !turns.empty() && turns.front().has_adders(); }

  std::vector<RelayPaths> turns = {};  // empty: all go straight
};

// Relays each direction whose link is less than half as fast as the best way over one other site, where
// paths that meet on a link, or at the line of a site, share it. The slowest links choose first.
RelayPaths choose_relays(const LinkMatrix& links);

// Two levels, where there are regions: in each a site for every site of the others, which passes on what that
// one sends, and adds up what goes there. A region's sites take turns, so that different owners have
// different ones, and one owner others for its next chunk.
RelayTurns relays_by_region(const LinkMatrix& links);

// Of `relays`, those over which `bytes` of the first site come sooner than straight, while the relay sends as
// many of its own.
RelayPaths relays_for(double bytes, const LinkMatrix& links, const RelayPaths& relays);

// One way, both links. Of several turns: the longest.
double path_delay(const LinkMatrix& links, const RelayPaths& relays, std::size_t from, std::size_t to);
double path_delay(const LinkMatrix& links, const RelayTurns& relays, std::size_t from, std::size_t to);

// What the link between two sites carries, as parts of one site's data, each turn alike. A frame that goes to
// a site and, over it, to others travels to it once.
// When everyone sends to everyone:
double broadcast_load(const RelayTurns& relays, std::size_t sites, std::size_t from, std::size_t to);
// When owners reduce: the part that is multiplied with each owner's share. `returns`: the owner sends its
// result to all.
std::vector<double> owner_load(const RelayTurns& relays, std::size_t sites, std::size_t from, std::size_t to,
                               bool returns = true);

}  // namespace geocomm::collective
