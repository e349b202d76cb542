// How one rank carries out a reduction over the sites: which chunks there are, who reduces each, and which
// frames travel between which ranks, numbered alike on both sides. Pure arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/layout/layout.h"
#include "collective/layout/topology.h"
#include "collective/policy/cost_model.h"

namespace geocomm::collective {

enum class Flow : std::uint8_t {
  ToReceiver,    // one site wants the result: all others send to it, it reduces
  BroadcastAll,  // everyone sends to every receiver; every receiver reduces
  OwnerReduces,  // everyone sends to the chunk's owner, which reduces and sends the result to the receivers
};

struct PlannedStripe {
  Stripe stripe;
  std::vector<bool> receives;  // per site
};

struct PlannedChunk {
  std::size_t stripe = 0;   // index in the list of stripes
  std::uint32_t index = 0;  // in the stripe
  std::size_t turn = 0;     // of the scheme's relays: in the stripe, of those that the same site reduces
  Interval range;           // elements, from the start of the stripe
  Flow flow = Flow::BroadcastAll;
  int reducer = -1;  // the site that reduces; -1: every receiver
};

// A frame on the wire. Its place in PeerPlan::sends or receives is its chunk number there.
struct Message {
  enum class Kind : std::uint8_t {
    Contribution,
    Result,
    Sum,  // of a region, by who adds up for the owner (RelayPaths::adds)
  };
  std::size_t chunk = 0;  // index in ReducePlan::chunks
  Kind kind = Kind::Contribution;
  int origin = -1;       // the site that made it
  bool delivers = true;  // the peer that receives it needs it; else that only relays it
};

struct PeerPlan {
  int rank = 0;
  std::vector<Message> sends;
  std::vector<Message> receives;
};

// All ranks must agree on these.
struct PlanSettings {
  std::size_t element_bytes = 4;
  std::size_t chunk_bytes = std::size_t{1} << 20;
  const ReduceScheme* scheme = nullptr;  // null: broadcast-all, nobody relays
};

struct ReducePlan {
  std::vector<PlannedChunk> chunks;  // stripe by stripe
  std::vector<PeerPlan> peers;       // those with messages, by rank
};

// `stripes`: those in which this rank takes part, in the order of the layout. A stripe that nobody receives
// has no chunks.
ReducePlan plan_reduce(const Topology& topology, std::span<const PlannedStripe> stripes,
                       const PlanSettings& settings);

}  // namespace geocomm::collective
