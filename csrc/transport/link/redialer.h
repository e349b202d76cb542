// Connects the streams of a link, and connects them again when they were lost, as the side that dials; as the
// other side, asks whether a peer of which no connection is left is still there.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/deadline.h"
#include "core/status.h"
#include "transport/io/io_loop.h"
#include "transport/io/socket.h"
#include "transport/link/dialer.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

// What the link knows, and what it wants to hear. On the IO thread.
class RedialerDelegate {
 public:
  virtual ~RedialerDelegate() = default;
  virtual HelloPayload next_hello(std::uint16_t stream) = 0;
  // What tells its connections from strangers' (StreamBinding::next_mark()).
  virtual std::string next_server_name() = 0;
  virtual void on_dialed(std::uint16_t stream, DialedStream dialed) = 0;
  // There is no link with this process (any more).
  virtual void on_no_link(const core::Status& why) = 0;
  // Nothing would be lost if the peer were gone: believe the first refusal.
  virtual bool nothing_left() const = 0;
  // Control packets came from the peer: only the process that sent them can go on with the link.
  virtual bool has_heard() const = 0;
  // As PeerAddress says: it goes on trying until the peer itself has ended the link.
  virtual bool verdict_from_above() const = 0;
};

struct RedialerOptions {
  DialOptions dial;  // peer, host, port, loopback_only: the rest is the redialer's
  JobToken token{};
  core::Deadline first_deadline = core::Deadline::after({});  // to connect for the first time
  std::chrono::milliseconds link_deadline{};
  std::chrono::milliseconds believed_refusal{};  // as EndpointOptions says
  bool dials = false;                            // else it only asks
  bool in_place_of_peer =
      false;  // it dials since the peer, who is to, has not come: that one may say that it does
};

// The IO thread's.
class Redialer {
 public:
  Redialer(std::shared_ptr<IoLoop> loop, RedialerDelegate& delegate)
      : loop_(std::move(loop)), delegate_(delegate) {}
  ~Redialer() { stop(); }

  bool has_options() const { return options_ != nullptr; }
  bool dials() const { return options_ && options_->dials; }
  // Precondition: there are options, and nothing under way.
  void set_dials(bool dials, bool in_place_of_peer) {
    options_->dials = dials, options_->in_place_of_peer = in_place_of_peer;
  }
  // A stream may have been welcomed without our knowing.
  bool has_said_hello() const;
  void set_options(RedialerOptions options) {
    options_ = std::make_unique<RedialerOptions>(std::move(options));
  }
  // Later attempts go there. Precondition: there are options. False: nothing new. What is under way goes on.
  bool set_address(const std::string& host, std::uint16_t port);
  // Where the peer is now, if not at that address (empty: there): tried first. False: nothing new. What
  // is under way goes on.
  bool set_seen_host(const std::string& host);
  // The link was complete once: from now on the peer has ended if it says so itself (Refusal::Proven), or if
  // nothing but refusals came for a while where nobody can prove anything. All else is silence: whoever takes
  // the peer's address for a while does not end a link, nor does a certificate that is renewed in time.
  void set_resuming() { resuming_ = true; }
  // Why the last attempt failed; Ok if none did since there was a connection.
  const core::Status& last_failure() const { return last_failure_; }

  // Until there is a connection, after a pause of up to `pause` if the link resumes. Nothing if that is under
  // way already.
  void dial(std::uint16_t stream, const StreamTuning& tuning, std::chrono::milliseconds pause = {});
  // Precondition: the options do not dial. Nothing without them, or while it asks already.
  void ask(const StreamTuning& tuning);
  // A stream was welcomed: those that failed and wait try again at once.
  void hurry();
  // Something came from the peer.
  void on_contact();
  void stop();

 private:
  DialOptions options_for(std::uint16_t stream, const StreamTuning& tuning);
  void begin(std::uint16_t stream, DialOptions options, Dialer::Done done);
  void finish(std::uint16_t stream);
  void on_asked(const core::Result<DialedStream>& answer, const StreamTuning& tuning);
  bool on_failed_attempt(const core::Status& why, Refusal refusal);
  // Whether nothing else has come for so many times as EndpointOptions::believed_refusal.
  bool believes_refusals(int times);
  bool is_final(const core::Status& refusal) const;
  void log_untrusted(const core::Status& why);

  const std::shared_ptr<IoLoop> loop_;
  RedialerDelegate& delegate_;
  std::unique_ptr<RedialerOptions> options_;
  std::map<std::uint16_t, std::unique_ptr<Dialer>> dialers_;  // by stream; 0 also asks
  std::string seen_host_;
  std::string good_host_;  // where it was dialed the last time
  bool resuming_ = false;
  bool refusing_ = false;  // since refusing_since_, nothing but refusals
  Timers::Time refusing_since_;
  core::Status last_failure_;
  Timers::Time next_warning_{};
  Timers::TimerId ask_again_{};
};

}  // namespace geocomm::transport
