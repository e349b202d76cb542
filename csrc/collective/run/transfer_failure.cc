// What a Transfer says of its failures: which peer, what came and what did not.
#include <utility>

#include "collective/layout/descriptor.h"
#include "collective/run/transfer.h"
#include "core/str.h"

namespace geocomm::collective {

using core::Status;
using core::StatusCode;
using core::str;

std::string Transfer::peer_name(std::size_t index) const {
  const Peer& peer = peers_[index];
  if (peer.channel) return peer.channel->peer();
  const Topology& topology = config().topology;
  return str("rank ", peer.rank, " (site ", topology.site_name(topology.site_of(peer.rank)), ")");
}

// Names those that hold the operation up. A peer that only lacks frames which it makes out of others' is
// waiting itself, so it is named only where no other is to blame.
Status Transfer::timeout_status_locked() const {
  std::string names;
  std::string details;
  const auto name = [&](auto is_to_blame, auto detail) {
    if (!names.empty()) return;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (!is_to_blame(peers_[i])) continue;
      const auto [text, others] = detail(peers_[i]);
      details += str(names.empty() ? "" : "; ", peer_name(i), text);
      names += str(names.empty() ? "" : ", ", peer_name(i), others);
    }
  };
  const auto sent = [](const Peer& peer) {
    return std::pair(str(" has sent ", peer.arrived, " of ", peer.receives, " chunks"), std::string());
  };
  name([](const Peer& peer) { return peer.owed_arrived < peer.owed; }, sent);
  name([](const Peer& peer) { return peer.queued > 0; },
       [](const Peer& peer) {
         return std::pair(str(" has not taken ", peer.queued, " chunks that this rank sends"), std::string());
       });
  name([](const Peer& peer) { return peer.sums_arrived < peer.sums; },
       [](const Peer& peer) {
         return std::pair(str(" has sent ", peer.sums_arrived, " of ", peer.sums,
                              " sums of its region, for which it needs chunks of ", peer.adds_up),
                          ", " + peer.adds_up);
       });
  name([&](const Peer& peer) { return names.empty() && peer.arrived < peer.receives; }, sent);
  if (names.empty()) details = "this rank has not done its own share of the work";
  return Status(StatusCode::Timeout, str(to_string(context_.kind), " number ", shown_seq(context_),
                                         " did not complete in time: ", details,
                                         ". Has every rank called it? Else raise the group's timeout"))
      .with_peer(names);
}

Status Transfer::mismatch(std::size_t index, std::uint64_t descriptor, std::uint32_t chunk_count) {
  {
    std::lock_guard lock(mutex_);
    peers_[index].mismatched = true;
  }
  const Peer& peer = peers_[index];
  if (descriptor != peer.receive_descriptor) {
    return Status(StatusCode::InvalidArgument,
                  str("ranks disagree about operation number ", shown_seq(context_),
                      ": this rank: ", describe(peer.receive_descriptor), "; ", peer_name(index), ": ",
                      describe(descriptor), ". All ranks must call the same operations in the same order"))
        .with_peer(peer_name(index));
  }
  return Status(StatusCode::InvalidArgument,
                str(describe(descriptor), ": this rank expects ", peer.receives, " chunks from ",
                    peer_name(index), ", which sends ", chunk_count,
                    ". The pieces, or the options of the process group, differ between the two"))
      .with_peer(peer_name(index));
}

Status Transfer::came_twice(std::size_t peer, std::uint32_t number) const {
  return core::corrupt("chunk ", number, " from ", peer_name(peer), " came twice").with_peer(peer_name(peer));
}

}  // namespace geocomm::collective
