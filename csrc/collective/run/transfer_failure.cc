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
  const auto add = [&](std::size_t index, const std::string& detail) {
    names += (names.empty() ? "" : ", ") + peer_name(index);
    details += (details.empty() ? "" : "; ") + detail;
  };
  for (const bool owed : {true, false}) {
    for (std::size_t i = 0; i < peers_.size() && (owed || names.empty()); ++i) {
      const Peer& peer = peers_[i];
      const std::uint32_t came = owed ? peer.owed_arrived : peer.arrived;
      const std::uint32_t expected = owed ? peer.owed : peer.receives;
      if (came < expected) {
        add(i, str(peer_name(i), " has sent ", peer.arrived, " of ", peer.receives, " chunks"));
      }
    }
    if (!names.empty()) break;
  }
  if (names.empty()) {
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (peers_[i].queued > 0) {
        add(i, str(peer_name(i), " has not taken ", peers_[i].queued, " chunks that this rank sends"));
      }
    }
  }
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
