// What the WAN between the sites of a group can do, as far as anyone has measured it. All ranks of a group
// hold the same numbers, so that what follows from them is the same everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/status.h"

namespace geocomm::collective {

struct LinkMatrix {
  std::size_t sites = 0;
  // Of the link from one site to another, [from * sites + to]; what is on the diagonal does not count.
  std::vector<double> bytes_per_s = {};
  std::vector<double> one_way_s = {};
  // Of all links of a site together, [site]; empty: no such limit is known.
  std::vector<double> up_bytes_per_s;
  std::vector<double> down_bytes_per_s;
  // The region of each site, [site], numbered from 0 in order of their first sites; empty: there are none.
  std::vector<std::uint32_t> regions = {};
  // What a site pays for a byte that it sends to another region, [site]; empty: nobody has told.
  std::vector<double> dollars_per_byte = {};

  // All links alike.
  static LinkMatrix uniform(std::size_t sites, double bytes_per_s, double one_way_s);
  // What is taken for true where nobody has measured: 1 Gbit/s and a round trip of 100 ms between any two.
  static LinkMatrix assumed(std::size_t sites) { return uniform(sites, 125e6, 0.05); }

  double rate(std::size_t from, std::size_t to) const { return bytes_per_s[from * sites + to]; }
  double delay(std::size_t from, std::size_t to) const { return one_way_s[from * sites + to]; }
  // The most that a site can send, or receive, whichever is less; infinite where no limit is known.
  double access(std::size_t site) const;

  // Where there are regions.
  bool crosses(std::size_t from, std::size_t to) const { return regions[from] != regions[to]; }

  // InvalidArgument: a list of another length than the sites ask for, a rate that is not positive, a delay
  // below zero or above 60 s, a region that is not numbered so, a price below zero.
  core::Status validate() const;
};

}  // namespace geocomm::collective
