#include "collective/layout/reduce_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

namespace geocomm::collective {

namespace {

// Stripes are cut in several chunks so that encoding, the wire and decoding overlap, unless the chunks became
// smaller than is worth a frame.
constexpr std::uint64_t kPipelineChunks = 4;
constexpr std::uint64_t kWorthwhileChunkBytes = 64 * 1024;
// A frame of raw elements fits a buffer of chunk_bytes, header included.
constexpr std::uint64_t kFrameReserveBytes = 64;
constexpr std::uint64_t kChunkAlignment = 256;  // elements
// Chunks per owner from which on a chunk more or less does not matter.
constexpr std::uint64_t kChunksThatAreFair = 16;

Flow flow_of(const PlannedStripe& planned, const PlanSettings& settings) {
  const auto receivers = std::count(planned.receives.begin(), planned.receives.end(), true);
  if (receivers == 1) return Flow::ToReceiver;
  const bool has_owners = settings.scheme != nullptr && settings.scheme->has_owners();
  return has_owners ? Flow::OwnerReduces : Flow::BroadcastAll;
}

using Shares = std::vector<std::uint32_t>;

// Deals chunks to owners, one after the other: always to the site that has least of its share so far, so that
// owners alternate and the first chunks of a stripe are spread as all of them are.
class OwnerDealer {
 public:
  explicit OwnerDealer(const Shares& shares) : shares_(shares), dealt_(shares.size(), 0) {}

  int next() {
    ++chunks_;
    std::size_t most_wanting = 0;
    std::int64_t most_missing = std::numeric_limits<std::int64_t>::min();
    for (std::size_t site = 0; site < shares_.size(); ++site) {
      const std::int64_t missing = chunks_ * shares_[site] - dealt_[site] * kShareParts;
      if (shares_[site] == 0 || missing <= most_missing) continue;
      most_wanting = site;
      most_missing = missing;
    }
    ++dealt_[most_wanting];
    return static_cast<int>(most_wanting);
  }
  // Chunks of a site so far.
  std::size_t dealt(int site) const {
    return static_cast<std::size_t>(dealt_[static_cast<std::size_t>(site)]);
  }

  // How far the site with the most chunks, for its share, is above it: 1 is exact.
  double imbalance() const {
    double worst = 1.0;
    for (std::size_t site = 0; site < shares_.size(); ++site) {
      if (shares_[site] == 0) continue;
      const double fair = static_cast<double>(chunks_) * shares_[site] / kShareParts;
      worst = std::max(worst, static_cast<double>(dealt_[site]) / fair);
    }
    return worst;
  }

 private:
  const Shares& shares_;
  std::vector<std::int64_t> dealt_;  // chunks, per site
  std::int64_t chunks_ = 0;
};

// `least` or somewhat more: as many chunks as can be dealt out by the shares.
std::uint64_t fair_count(std::uint64_t least, const Shares& shares) {
  const std::uint64_t owners = shares.size() - static_cast<std::size_t>(std::ranges::count(shares, 0u));
  if (least >= owners * kChunksThatAreFair) return least;
  constexpr double kBetter = 0.99;
  OwnerDealer dealer(shares);
  for (std::uint64_t count = 0; count < least; ++count) dealer.next();
  std::uint64_t best = least;
  double best_imbalance = dealer.imbalance();
  for (std::uint64_t count = least + 1; count < least + 2 * owners; ++count) {
    dealer.next();
    const double tried = dealer.imbalance();
    if (tried >= best_imbalance * kBetter) continue;
    best = count;
    best_imbalance = tried;
  }
  return best;
}

std::uint64_t chunk_elements(std::uint64_t elements, Flow flow, const PlanSettings& settings) {
  const auto aligned = [&](std::uint64_t bytes) {
    return std::max(bytes / settings.element_bytes / kChunkAlignment * kChunkAlignment, kChunkAlignment);
  };
  const std::uint64_t most =
      aligned(settings.chunk_bytes - std::min<std::size_t>(settings.chunk_bytes, kFrameReserveBytes));
  const std::uint64_t least = std::min(most, aligned(kWorthwhileChunkBytes));
  const auto parts = [&](std::uint64_t size) { return (elements + size - 1) / size; };
  const bool has_owners = flow == Flow::OwnerReduces;
  const std::uint64_t unit = has_owners ? settings.scheme->shares.size() : 1;
  std::uint64_t count = std::max(parts(most), std::min(unit * kPipelineChunks, parts(least)));
  if (has_owners) count = fair_count(count, settings.scheme->shares);
  const std::uint64_t size = (elements + count - 1) / count;
  return std::max((size + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment, kChunkAlignment);
}

// Whether `site` sends or receives frames of `origin` for the sites `wanted`.
bool takes_part(int site, int origin, const std::vector<bool>& wanted, const RelayPaths& relays) {
  if (site == origin || wanted[static_cast<std::size_t>(site)]) return true;
  for (std::size_t to = 0; !relays.over.empty() && to < wanted.size(); ++to) {
    if (wanted[to] && relays.via(static_cast<std::size_t>(origin), to) == site) return true;
  }
  return false;
}

// Calls visit(from_site, to_site, message) for the ways of one frame: from its origin to those that want it,
// once over each link, and on from those that relay it.
template <typename Visit>
void send_to(const std::vector<bool>& wanted, Message message, const RelayPaths& relays, Visit&& visit) {
  const auto origin = static_cast<std::size_t>(message.origin);
  std::vector<bool> relayed(wanted.size(), false);  // by the site that relays
  for (std::size_t to = 0; to < wanted.size(); ++to) {
    const int over = wanted[to] && to != origin ? relays.via(origin, to) : -1;
    if (over >= 0) relayed[static_cast<std::size_t>(over)] = true;
  }
  for (std::size_t to = 0; to < wanted.size(); ++to) {
    if (to == origin) continue;
    message.delivers = wanted[to] && relays.via(origin, to) < 0;
    if (message.delivers || relayed[to]) visit(message.origin, static_cast<int>(to), message);
  }
  message.delivers = true;
  for (std::size_t to = 0; to < wanted.size(); ++to) {
    const int over = wanted[to] && to != origin ? relays.via(origin, to) : -1;
    if (over >= 0) visit(over, static_cast<int>(to), message);
  }
}

// The same for the frames of a chunk that `site` sends or receives, and perhaps others.
template <typename Visit>
void for_each_message(const PlannedChunk& chunk, std::size_t index, int site,
                      const std::vector<bool>& receives, const RelayPaths& relays, Visit&& visit) {
  std::vector<bool> reduces = receives;
  if (chunk.reducer >= 0) {
    reduces.assign(receives.size(), false);
    reduces[static_cast<std::size_t>(chunk.reducer)] = true;
  }
  const auto owner = static_cast<std::size_t>(chunk.reducer);
  for (int origin = 0; origin < static_cast<int>(receives.size()); ++origin) {
    if (chunk.reducer >= 0 && relays.has_adders()) {
      if (origin == chunk.reducer) continue;
      const auto from = static_cast<std::size_t>(origin);
      const int adder = relays.via(owner, from);
      const auto kind = relays.is_adder(owner, from) ? Message::Kind::Sum : Message::Kind::Contribution;
      visit(origin, adder < 0 ? chunk.reducer : adder, {index, kind, origin});
      continue;
    }
    if (!takes_part(site, origin, reduces, relays)) continue;
    send_to(reduces, {index, Message::Kind::Contribution, origin}, relays, visit);
  }
  if (chunk.flow == Flow::OwnerReduces && takes_part(site, chunk.reducer, receives, relays)) {
    send_to(receives, {index, Message::Kind::Result, chunk.reducer}, relays, visit);
  }
}

}  // namespace

ReducePlan plan_reduce(const Topology& topology, std::span<const PlannedStripe> stripes,
                       const PlanSettings& settings) {
  ReducePlan plan;
  std::map<int, PeerPlan> peers;
  const RelayTurns straight;
  const RelayTurns& relays = settings.scheme != nullptr ? settings.scheme->relays : straight;
  for (std::size_t l = 0; l < stripes.size(); ++l) {
    const PlannedStripe& planned = stripes[l];
    const auto first_receiver = std::find(planned.receives.begin(), planned.receives.end(), true);
    if (first_receiver == planned.receives.end()) continue;
    const Flow flow = flow_of(planned, settings);
    const std::uint64_t elements = planned.stripe.range.size();
    const std::uint64_t step = chunk_elements(elements, flow, settings);
    std::optional<OwnerDealer> dealer;
    if (flow == Flow::OwnerReduces) dealer.emplace(settings.scheme->shares);
    std::uint32_t index = 0;
    for (std::uint64_t begin = 0; begin < elements; begin += step, ++index) {
      PlannedChunk chunk{l, index, index, {begin, std::min(elements, begin + step)}, flow, -1};
      if (flow == Flow::ToReceiver) {
        chunk.reducer = static_cast<int>(first_receiver - planned.receives.begin());
      } else if (flow == Flow::OwnerReduces) {
        chunk.reducer = dealer->next();
        chunk.turn = dealer->dealt(chunk.reducer) - 1;
      }
      for_each_message(chunk, plan.chunks.size(), topology.site(), planned.receives, relays.at(chunk.turn),
                       [&](int from, int to, const Message& message) {
                         if (from != topology.site() && to != topology.site()) return;
                         const bool sends = from == topology.site();
                         const int rank =
                             planned.stripe.rank_of_site[static_cast<std::size_t>(sends ? to : from)];
                         PeerPlan& peer = peers[rank];
                         (sends ? peer.sends : peer.receives).push_back(message);
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
