// Mail: content of any length between processes of independent jobs, over the channels of an endpoint. There
// is no group and no store: whoever knows a process's id and address, and the token, sends to it.
//
// Content is named by (round, part). A round is a group of the transport, whose number has the highest bit,
// which those of process groups never have. A part is two operations: its length, and, unless that is 0, its
// bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/executor.h"
#include "core/fork.h"
#include "core/status.h"
#include "transport/endpoint.h"

namespace geocomm::transport {

struct MailPeer {
  ProcessId id{};
  std::string description;
  std::string site;
  std::string state;  // "connecting", "connected", "failed: why"
  ChannelStats stats;
};

// Thread-safe. Its methods may free contents and wait for the IO thread: not to be called under a lock that
// freeing them takes. Once it is closed they do nothing, but for those that say otherwise. In a forked child
// they return Aborted.
class Mail {
 public:
  // The content, or why it will not come.
  using Then = std::function<void(core::Result<core::Buffer>)>;
  // Lets go of the endpoint: whether that has closed it, after what is queued was sent, if that took no
  // longer than `patience`.
  using Release = std::function<bool(std::chrono::milliseconds patience)>;

  static constexpr std::uint64_t kMostRounds = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kMostParts = std::uint64_t{1} << 62;

  // `max_bytes`: of one content; more is refused as corrupt. `executor` runs what may block; it outlives the
  // mail, and what is on its way.
  Mail(std::shared_ptr<Endpoint> endpoint, Release release, const JobToken& token, std::uint64_t max_bytes,
       core::GrowingExecutor& executor);
  // Closes it without patience, if nobody did. In a forked child it leaves everything to the parent.
  ~Mail();
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  const ProcessId& id() const { return endpoint_->id(); }
  std::uint16_t port() const { return endpoint_->port(); }

  // Connects to a process, or takes over a new address. A channel that has failed is made anew. Errors:
  // Aborted (closed), those of Endpoint::connect().
  core::Status peer(PeerAddress address);
  // The content is shared until it is sent, and must not change; it may be freed on the IO thread. Dropped,
  // without an error, if the peer is not known or lost, or if the round has ended.
  core::Status send(const ProcessId& peer, std::uint64_t round, std::uint64_t part, core::Buffer content);
  // Calls `then` once, on a thread of the executor, where it is freed too, unless this returns an error. A
  // part of a round is received once from each peer.
  core::Status receive(const ProcessId& peer, std::uint64_t round, std::uint64_t part, Then then);
  // What is to be received gets nothing, what is queued is dropped, and what still comes is thrown away.
  core::Status end_round(std::uint64_t round);
  core::Status forget(const ProcessId& peer);
  core::Result<std::vector<MailPeer>> peers() const;
  // Ends all rounds, after what is queued was sent; then lets go of the endpoint. Idempotent.
  core::Status close(std::chrono::milliseconds patience);

 private:
  struct Peer {
    PeerAddress address;
    std::shared_ptr<Channel> channel;
  };

  core::Status check(std::uint64_t round, std::uint64_t part) const;
  std::shared_ptr<Channel> channel_of(const ProcessId& peer, std::uint64_t round);

  const std::shared_ptr<Endpoint> endpoint_;
  const Release release_;
  const JobToken token_;
  const std::uint64_t max_bytes_;
  core::GrowingExecutor& executor_;
  const core::ProcessMark mark_;

  // Held by what makes and ends channels, so that there is one of a peer; before mutex_.
  std::mutex changing_;
  mutable std::mutex mutex_;  // guards all below
  std::map<ProcessId, Peer> peers_;
  std::set<std::uint64_t> rounds_;  // open here
  bool closed_ = false;
};

}  // namespace geocomm::transport
