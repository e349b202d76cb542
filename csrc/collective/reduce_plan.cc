#include "collective/reduce_plan.h"

#include <algorithm>
#include <map>

namespace geocomm::collective {

namespace {

// Lanes are cut in several chunks so that encoding, the wire and decoding overlap, unless the chunks became
// smaller than is worth a frame.
constexpr std::uint64_t kPipelineChunks = 4;
constexpr std::uint64_t kMinChunkBytes = 64 * 1024;
// A frame of raw elements fits a buffer of chunk_bytes, header included.
constexpr std::uint64_t kFrameReserveBytes = 64;
constexpr std::uint64_t kChunkAlignment = 256;  // elements

Flow flow_of(const PlannedLane& planned, const PlanSettings& settings) {
  const auto receivers = std::count(planned.receives.begin(), planned.receives.end(), true);
  if (receivers == 1) return Flow::ToReceiver;
  const std::uint64_t bytes = planned.lane.range.size() * settings.element_bytes;
  if (planned.receives.size() <= 2 || bytes < settings.broadcast_all_below_bytes) return Flow::BroadcastAll;
  return Flow::OwnerReduces;
}

// The one place where owners are chosen.
int owner_of(std::uint32_t chunk_index, std::size_t sites) {
  return static_cast<int>(chunk_index % sites);
}

std::uint64_t chunk_elements(std::uint64_t elements, Flow flow, std::size_t sites,
                             const PlanSettings& settings) {
  const auto aligned = [&](std::uint64_t bytes) {
    return std::max(bytes / settings.element_bytes / kChunkAlignment * kChunkAlignment, kChunkAlignment);
  };
  const std::uint64_t most =
      aligned(settings.chunk_bytes - std::min<std::size_t>(settings.chunk_bytes, kFrameReserveBytes));
  const std::uint64_t least = std::min(most, aligned(kMinChunkBytes));
  const auto parts = [&](std::uint64_t size) { return (elements + size - 1) / size; };
  // Owners get equally many chunks.
  const std::uint64_t unit = flow == Flow::OwnerReduces ? sites : 1;
  std::uint64_t count = std::max(parts(most), std::min(unit * kPipelineChunks, parts(least)));
  count = (count + unit - 1) / unit * unit;
  const std::uint64_t size = (elements + count - 1) / count;
  return std::max((size + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment, kChunkAlignment);
}

// Calls visit(from_site, to_site, kind) for every frame of a chunk.
template <typename Visit>
void for_each_message(const PlannedChunk& chunk, const std::vector<bool>& receives, Visit&& visit) {
  const int sites = static_cast<int>(receives.size());
  for (int from = 0; from < sites; ++from) {
    for (int to = 0; to < sites; ++to) {
      if (from == to) continue;
      const bool wanted = receives[static_cast<std::size_t>(to)];
      if (chunk.reducer < 0 ? wanted : to == chunk.reducer) visit(from, to, Message::Kind::Contribution);
      if (chunk.flow == Flow::OwnerReduces && from == chunk.reducer && wanted) {
        visit(from, to, Message::Kind::Result);
      }
    }
  }
}

}  // namespace

ReducePlan plan_reduce(const Topology& topology, std::span<const PlannedLane> lanes,
                       const PlanSettings& settings) {
  ReducePlan plan;
  std::map<int, PeerPlan> peers;
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    const PlannedLane& planned = lanes[l];
    const std::size_t sites = planned.receives.size();
    const auto first_receiver = std::find(planned.receives.begin(), planned.receives.end(), true);
    if (first_receiver == planned.receives.end()) continue;
    const Flow flow = flow_of(planned, settings);
    const std::uint64_t elements = planned.lane.range.size();
    const std::uint64_t step = chunk_elements(elements, flow, sites, settings);
    std::uint32_t index = 0;
    for (std::uint64_t begin = 0; begin < elements; begin += step, ++index) {
      PlannedChunk chunk{l, index, {begin, std::min(elements, begin + step)}, flow, -1};
      if (flow == Flow::ToReceiver) {
        chunk.reducer = static_cast<int>(first_receiver - planned.receives.begin());
      } else if (flow == Flow::OwnerReduces) {
        chunk.reducer = owner_of(index, sites);
      }
      for_each_message(chunk, planned.receives, [&](int from, int to, Message::Kind kind) {
        if (from != topology.site() && to != topology.site()) return;
        const bool sends = from == topology.site();
        const int rank = planned.lane.rank_of_site[static_cast<std::size_t>(sends ? to : from)];
        PeerPlan& peer = peers[rank];
        (sends ? peer.sends : peer.receives).push_back({plan.chunks.size(), kind});
      });
      plan.chunks.push_back(chunk);
    }
  }
  for (auto& [rank, peer] : peers) {
    peer.rank = rank;
    plan.peers.push_back(std::move(peer));
  }
  return plan;
}

}  // namespace geocomm::collective
