// Mail: content of any length between processes of independent jobs, over the channels of an endpoint. There
// is no group and no store: whoever knows a process's id and address, and the token, sends to it.
//
// Content is named by (round, part). A round is a group of the transport, whose number has the highest bit,
// which those of process groups never have. A part is two operations: its length, and, unless that is 0, its
// bytes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "binding/module/process_resources.h"
#include "binding/torch/torch_prelude.h"

namespace geocomm::binding {

// Lets threads call into Python until the interpreter is about to end. Thread-safe.
class CallGate {
 public:
  // False once it is closed. Otherwise leave() must follow.
  bool enter();
  void leave();
  // Returns when no thread is inside any more, or at the deadline. Not from inside.
  void close(core::Deadline deadline);

 private:
  std::mutex mutex_;  // guards all below
  std::condition_variable left_;
  bool closed_ = false;
  int inside_ = 0;
};

struct MailPeer {
  transport::ProcessId id{};
  std::string description;
  std::string site;
  std::string state;  // "connecting", "connected", "failed: why"
  transport::ChannelStats stats;
};

// Thread-safe. Its methods may free tensors and wait for the IO thread: not to be called with Python's lock
// held. Once it is closed they do nothing, but for those that say otherwise.
class Mail {
 public:
  // The content, or nothing and why it will not come.
  using Then = std::function<void(std::optional<at::Tensor>, const std::string&)>;

  static constexpr std::uint64_t kMostRounds = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kMostParts = std::uint64_t{1} << 62;

  // It is one of the endpoint's users until it is closed. `max_bytes`: of one content; more is refused as
  // corrupt.
  Mail(std::shared_ptr<ProcessResources> process, const transport::JobToken& token, std::uint64_t max_bytes);
  // Closes it without patience, if nobody did. In a forked child it leaves everything to the parent.
  ~Mail();

  const transport::ProcessId& id() const { return process_->endpoint->id(); }
  std::uint16_t port() const { return process_->endpoint->port(); }

  // Connects to a process, or takes over a new address. A channel that has failed is made anew.
  void peer(transport::PeerAddress address);
  // The content is shared until it is sent, and must not change. Dropped if the peer is not known or lost, or
  // if the round has ended.
  void send(const transport::ProcessId& peer, std::uint64_t round, std::uint64_t part,
            const at::Tensor& content);
  // Calls `then` once, on some thread. A part of a round is received once from each peer.
  void receive(const transport::ProcessId& peer, std::uint64_t round, std::uint64_t part, Then then);
  // What is to be received gets nothing, what is queued is dropped, and what still comes is thrown away.
  void end_round(std::uint64_t round);
  void forget(const transport::ProcessId& peer);
  std::vector<MailPeer> peers() const;
  // Ends all rounds, after what is queued was sent; then lets go of the endpoint. Idempotent.
  void close(std::chrono::milliseconds patience);
  // To be closed before the interpreter ends: then no `then` is called any more. It may outlive the mail.
  const std::shared_ptr<CallGate>& gate() const { return gate_; }

 private:
  struct Peer {
    transport::PeerAddress address;
    std::shared_ptr<transport::Channel> channel;
  };

  std::shared_ptr<transport::Channel> channel_of(const transport::ProcessId& peer, std::uint64_t round);

  const std::shared_ptr<ProcessResources> process_;
  const transport::JobToken token_;
  const std::uint64_t max_bytes_;
  const std::shared_ptr<CallGate> gate_ = std::make_shared<CallGate>();
  const core::ProcessMark mark_;

  std::mutex
      changing_;  // held by what makes and ends channels, so that there is one of a peer; before mutex_
  mutable std::mutex mutex_;  // guards all below
  std::map<transport::ProcessId, Peer> peers_;
  std::set<std::uint64_t> rounds_;  // open here
  bool closed_ = false;
};

}  // namespace geocomm::binding
