#include "transport/link/redialer.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/log.h"
#include "core/str.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

constexpr std::chrono::seconds kWarningInterval{10};
// Short enough to notice within a few attempts that a peer has ended.
constexpr std::chrono::milliseconds kLongestResumePause{1000};
constexpr std::chrono::milliseconds kAskAgain{2000};
// A firewall may refuse what this side dials, and the peer, who dials too, be a slow one.
constexpr int kTimesBelievedAtFirst = 4;
// Some round trips across the world.
constexpr std::chrono::milliseconds kLeastHandshakeTimeout{1000};
// Of two addresses, one may be dead.
constexpr std::chrono::milliseconds kHandshakeTimeoutOfTwo{4000};
constexpr std::chrono::hours kNoDeadline{24 * 365};

}  // namespace

bool Redialer::set_address(const std::string& host, std::uint16_t port) {
  const bool moved = options_->dial.host != host || options_->dial.port != port;
  options_->dial.host = host;
  options_->dial.port = port;
  return moved;
}

bool Redialer::set_seen_host(const std::string& host) {
  const auto known = options_ ? hosts_of(options_->dial.host) : std::vector<std::string>();
  const bool is_known = std::find(known.begin(), known.end(), host) != known.end();
  const std::string elsewhere = is_known ? std::string() : host;
  on_contact();
  return std::exchange(seen_host_, elsewhere) != elsewhere;
}

DialOptions Redialer::options_for(std::uint16_t stream, const StreamTuning& tuning) {
  DialOptions options = options_->dial;
  options.seen_host = seen_host_;
  options.good_host = good_host_;
  options.tuning = tuning;
  options.hello = [this, stream] {
    HelloPayload hello = delegate_.next_hello(stream);
    hello.token = options_->token;
    return hello;
  };
  options.server_name = [this] { return delegate_.next_server_name(); };
  options.on_failed_attempt = [this](const Status& why, Refusal refusal) {
    return on_failed_attempt(why, refusal);
  };
  options.deadline = options_->first_deadline;
  if (delegate_.verdict_from_above()) {
    options.longest_pause = kLongestResumePause;
    options.deadline = core::Deadline::after(kNoDeadline);
  }
  if (!resuming_) return options;
  options.resuming = true;
  // A peer that is deaf for long is dialed a few times before it is given up.
  options.handshake_timeout = std::clamp<std::chrono::milliseconds>(
      options_->link_deadline / 4, kLeastHandshakeTimeout, kHandshakeTimeout);
  if (!seen_host_.empty())
    options.handshake_timeout = std::min(options.handshake_timeout, kHandshakeTimeoutOfTwo);
  options.longest_pause = kLongestResumePause;
  options.deadline = core::Deadline::after(kNoDeadline);  // the link's own clock ends it
  return options;
}

void Redialer::begin(std::uint16_t stream, DialOptions options, Dialer::Done done) {
  auto& dialer = dialers_[stream];
  dialer = std::make_unique<Dialer>(loop_, std::move(options), std::move(done));
  // It may fail at once, which destroys all dialers: not to be touched afterwards.
  dialer->start();
}

// For a dialer that is in its last callback, and cannot be destroyed there.
void Redialer::finish(std::uint16_t stream) {
  const auto found = dialers_.find(stream);
  if (found == dialers_.end()) return;
  std::shared_ptr<Dialer> gone = std::move(found->second);
  dialers_.erase(found);
  loop_->post([gone] {});
}

void Redialer::dial(std::uint16_t stream, const StreamTuning& tuning, std::chrono::milliseconds pause) {
  if (!options_ || dialers_.contains(stream)) return;
  DialOptions options = options_for(stream, tuning);
  options.first_pause = pause;
  begin(stream, std::move(options), [this, stream](Result<DialedStream> dialed) {
    finish(stream);
    if (dialed.is_ok()) good_host_ = SocketAddress::peer_of(dialed->connection->fd()).host();
    if (dialed.is_ok()) return delegate_.on_dialed(stream, std::move(dialed).value());
    delegate_.on_no_link(dialed.status());
  });
}

bool Redialer::has_said_hello() const {
  return std::any_of(dialers_.begin(), dialers_.end(),
                     [](const auto& one) { return one.second->has_said_hello(); });
}

void Redialer::hurry() {
  for (const auto& [stream, dialer] : dialers_) dialer->hurry();
}

void Redialer::ask(const StreamTuning& tuning) {
  if (!options_ || !dialers_.empty()) return;
  loop_->cancel_timer(ask_again_);
  begin(0, options_for(0, tuning), [this, tuning](const Result<DialedStream>& answer) {
    finish(0);
    on_asked(answer, tuning);
  });
}

void Redialer::on_asked(const Result<DialedStream>& answer, const StreamTuning& tuning) {
  // The peer itself says that it is the one who dials.
  if (!answer.is_ok() && answer.status().code() == StatusCode::InvalidArgument) {
    on_contact();
    ask_again_ = loop_->add_timer_in(kAskAgain, [this, tuning] { ask(tuning); });
    return;
  }
  delegate_.on_no_link(answer.is_ok() ? core::corrupt("welcomed where it should dial") : answer.status());
}

void Redialer::on_contact() {
  refusing_ = false;
  if (!last_failure_.is_ok()) last_failure_ = Status::ok();
}

// Whether to go on.
bool Redialer::on_failed_attempt(const Status& why, Refusal refusal) {
  last_failure_ = why;
  // The answer to who only asks: on_asked() knows what it means.
  const bool said = refusal == Refusal::Proven || refusal == Refusal::Unproven;
  if (said && !options_->dials && why.code() == StatusCode::InvalidArgument) return false;
  if (said && options_->in_place_of_peer && !resuming_ && why.code() == StatusCode::InvalidArgument)
    return true;
  switch (refusal) {
    case Refusal::Proven:
      if (is_final(why)) return false;
      if (why.code() == StatusCode::Authentication) log_untrusted(why);
      break;
    case Refusal::Unproven:
      if (delegate_.verdict_from_above()) {
        if (is_final(why)) return false;
        break;
      }
      if (resuming_) return !believes_refusals(1);
      // For the first time a geocomm process says why not, at once.
      return why.sys_errno() == ECONNREFUSED && !believes_refusals(kTimesBelievedAtFirst);
    case Refusal::Untrusted:
      // For the first time it is told soon: wrong keys are the likeliest reason.
      if (!resuming_) return !believes_refusals(1);
      log_untrusted(why);
      break;
    case Refusal::None:
      break;
  }
  refusing_ = false;
  return true;
}

// Of a process that has proven, or need not prove, to be one of the job.
bool Redialer::is_final(const Status& refusal) const {
  // Certificates can still be put in order while a link resumes.
  if (refusal.code() == StatusCode::Authentication) return !resuming_;
  if (!delegate_.verdict_from_above() || delegate_.nothing_left()) return true;
  // Two that never had a link may yet have one: the peer has not heard that this is a new one.
  return refusal.code() == StatusCode::VersionMismatch ||
         (refusal.code() == StatusCode::PeerLost && (resuming_ || delegate_.has_heard()));
}

bool Redialer::believes_refusals(int times) {
  const auto now = loop_->now();
  if (!std::exchange(refusing_, true)) refusing_since_ = now;
  return delegate_.nothing_left() ||
         now - refusing_since_ >= std::min(times * options_->believed_refusal, options_->link_deadline);
}

// Strangers cannot fill the log.
void Redialer::log_untrusted(const Status& why) {
  const auto now = loop_->now();
  if (now < next_warning_) return;
  next_warning_ = now + kWarningInterval;
  core::log(core::LogLevel::Warning, "cannot resume the link with ", options_->dial.peer, " at ",
            options_->dial.host, ":", options_->dial.port,
            seen_host_.empty() ? "" : core::str(" or ", seen_host_), ": ", why.message(), ". Trying again",
            delegate_.verdict_from_above() ? "" : " until the link deadline");
}

void Redialer::stop() {
  loop_->cancel_timer(ask_again_);
  dialers_.clear();
}

}  // namespace geocomm::transport
