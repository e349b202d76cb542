// Endpoint: this process's listener, its IO thread, and its channels, one per peer process, shared by all
// groups.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/status.h"
#include "transport/channel.h"
#include "transport/link/link_options.h"
#include "transport/rdma/rdma_fabric.h"

namespace geocomm::transport {

enum class Security : std::uint8_t {
  Required = 0,  // TLS with the keys; without keys only 127.0.0.0/8 and ::1, both to dial and to accept
  Insecure = 1,  // plaintext to anywhere
};

struct EndpointOptions : LinkOptions {
  std::string bind_address;  // numeric address to listen on; empty: all interfaces, or loopback (Required
                             // without keys)
  std::uint16_t port = 0;    // 0: the kernel chooses
  // How long create() waits for a port that is taken: the process before this one may be about to end.
  std::chrono::milliseconds port_patience = std::chrono::seconds(10);
  Security security = Security::Required;
  std::string keys = {};  // folder (tls_keys.h): every connection is TLS; empty: none is. Not with Insecure
  std::string site = {};  // whose certificate the keys must hold; empty: any
  int tls_threads = 0;    // that encrypt and decrypt in place of the IO thread; less than two: it does all
  bool outbound_only = false;  // peers cannot dial this process, so it dials all that are not so themselves
  // For the channels whose PeerAddress says so. Plaintext: under Security::Required only if trusted. Not
  // capped by max_pacing_bps.
  RdmaOptions rdma = {};
};

// Of a process that computes with so many threads. More than four would move over 40 Gbit/s.
constexpr int tls_threads_beside(std::size_t threads) {
  return static_cast<int>(std::min<std::size_t>(threads / 2, 4));
}

class Endpoint {
 public:
  static core::Result<std::unique_ptr<Endpoint>> create(const EndpointOptions& options);
  // shutdown() with a short deadline, if nobody called it; then it waits for the IO thread however long that
  // takes. Must not be destroyed in a forked child, nor on the IO thread.
  virtual ~Endpoint() = default;

  virtual const ProcessId& id() const = 0;
  virtual std::uint16_t port() const = 0;
  // From now on peers that present `token` are let in (connect() implies it). Peers with an unknown token are
  // refused and told to try again, since this process may learn the token a moment later.
  virtual void allow(const JobToken& token) = 0;
  // The channel to `peer`, made on first use: the process with the larger id dials (with retries until
  // link_deadline), and the other one too after two seconds. Returns at once; the channel connects in the
  // background and queues what is sent meanwhile. Errors: InvalidArgument (own id, or RDMA without a plugin),
  // Authentication (Required and the peer is not on loopback), Aborted (shut down).
  virtual core::Result<std::shared_ptr<Channel>> connect(const PeerAddress& peer, const JobToken& token) = 0;
  // Ends the channel with `process` for good: posted receives get `why`, what is queued is dropped, nobody
  // dials it any more, and when it dials it is refused as a stranger. A later connect() makes a new channel,
  // which works once the peer has begun anew too. Once this returns, no sink of the channel is called any
  // more. Nothing if there is no such channel. Not from a sink.
  virtual void forget(const ProcessId& process, const core::Status& why) = 0;
  // forget() of every channel that has failed, and of those with processes that are not `kept`.
  virtual void forget_others(const std::set<ProcessId>& kept, const core::Status& why) = 0;
  // Ends a group on all channels: posted receives get `why`; what came for others of its operations is
  // dropped, and what still comes is thrown away, so that it takes neither memory here nor the peers' credit.
  // send() and post_receive() return Aborted. Once this returns, no sink of the group is called any more. Not
  // from a sink.
  virtual void close_group(std::uint64_t group, const core::Status& why, QueuedChunks queued) = 0;
  // Flushes what is queued, sends Close, ends. Meanwhile what the peers send still arrives; receives that
  // are posted at the end get Aborted. Timeout if a peer neither answered nor was lost by the deadline, or if
  // a sink or a callback does not return; ends at most two seconds after the deadline. Idempotent. Not from a
  // sink or a callback. In a forked child it does nothing.
  virtual core::Status shutdown(core::Deadline deadline) = 0;
  // Closes everything at once: pending operations get `why`.
  virtual void abort(const core::Status& why) = 0;
  virtual std::vector<std::shared_ptr<Channel>> channels() const = 0;
  // Whether shutdown() has ended the IO thread: if not, that may still use the endpoint.
  virtual bool is_over() const = 0;
};

}  // namespace geocomm::transport
