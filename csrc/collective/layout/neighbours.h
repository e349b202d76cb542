// Whom a rank always has a channel to.
#pragma once

#include <set>

#include "collective/layout/topology.h"

namespace geocomm::collective {

// The other ranks of the stripes that this rank is in, and those before and after it at its own site (in a
// ring): so every rank hears of a failure from somebody.
std::set<int> neighbours_of(const Topology& topology);

}  // namespace geocomm::collective
