#include "transport/link/dialer.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/str.h"
#include "core/thread.h"
#include "transport/link/handshake.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

constexpr std::chrono::milliseconds kFirstDialPause{50};
// Of several addresses one that swallows packets holds up the others for so long, and twice as long in each
// round.
constexpr std::chrono::milliseconds kConnectTimeoutOfSeveral{2000};
// A peer that has not answered Hello by then most likely never will.
constexpr std::chrono::milliseconds kWelcomeIsDue{2000};
constexpr unsigned kMostDoublings = 7;

Status with_reason(const std::string& what, const Status& why) {
  return Status(why.code(), core::str(what, ": ", why.message())).with_errno(why.sys_errno());
}

// How much a failed attempt at one of several addresses says of the peer: another process may be there (one
// that is behind a NAT has an address that somebody else has here), or nobody, or the peer's machine, or the
// peer.
enum Weight : int { kAnotherProcess, kNobody, kItsMachine, kThePeer };

Weight weight_of(const Status& why, Refusal refusal) {
  if (why.sys_errno() == ECONNREFUSED) return kItsMachine;
  if (refusal == Refusal::None) return kNobody;
  const bool is_another =
      refusal == Refusal::Untrusted || why.code() == StatusCode::Network || why.code() == kTryAgain;
  return is_another ? kAnotherProcess : kThePeer;
}

}  // namespace

Dialer::Dialer(std::shared_ptr<IoLoop> loop, DialOptions options, Done done)
    : loop_(std::move(loop)), options_(std::move(options)), done_(std::move(done)) {}

Dialer::~Dialer() {
  *self_ = nullptr;
  disconnect();
}

void Dialer::start() {
  if (options_.first_pause <= std::chrono::milliseconds(0)) return begin_round();
  pause(loop_->now() + jitter(options_.first_pause));
}

void Dialer::pause(Timers::Time until) {
  state_ = State::Pausing;
  timer_ = loop_->add_timer(until, [this] { next_address_ < addresses_.size() ? connect() : begin_round(); });
}

bool Dialer::has_said_hello() const {
  return state_ == State::Reading && loop_->now() - said_hello_ < kWelcomeIsDue;
}

void Dialer::hurry() {
  if (state_ != State::Pausing || attempts_ == 0) return;
  loop_->cancel_timer(timer_);
  pause(loop_->now());
}

// Peers that failed together do not come back together.
std::chrono::milliseconds Dialer::jitter(std::chrono::milliseconds longest) {
  return std::chrono::milliseconds(std::uniform_int_distribution<std::int64_t>(0, longest.count())(random_));
}

void Dialer::disconnect() {
  loop_->cancel_timer(timer_);
  if (connection_) {
    loop_->remove(handler_);
    connection_.reset();
  }
  state_ = State::Idle;
  reply_bytes_ = 0;
}

void Dialer::begin_round() {
  state_ = State::Idle;
  addresses_.clear();
  next_address_ = 0;
  if (numeric_addresses(options_.host, options_.port).size() == hosts_of(options_.host).size()) {
    Result<std::vector<SocketAddress>> found = resolve(options_.host, options_.port);
    return found.is_ok() ? connect_to_all(std::move(found).value()) : retry(found.status());
  }
  if (!resolver_works_) {
    if (Status started = start_resolver(); !started.is_ok()) return retry(started);
  }
  state_ = State::Resolving;
  began_ = loop_->now();
  limit_handshake(options_.handshake_timeout);
}

// getaddrinfo() blocks, for half a minute where name servers are silent, and cannot be stopped: a thread of
// its own, which nobody waits for.
Status Dialer::start_resolver() {
  auto resolver = core::start_thread(
      "geocomm-resolve", [loop = loop_, self = self_, host = options_.host, port = options_.port] {
        auto found = std::make_shared<Result<std::vector<SocketAddress>>>(resolve(host, port));
        loop->post([self, found] {
          if (*self != nullptr) (**self).on_resolved(std::move(*found));
        });
      });
  if (!resolver.is_ok()) return resolver.status();
  resolver->detach();
  resolver_works_ = true;
  return Status::ok();
}

void Dialer::on_resolved(Result<std::vector<SocketAddress>> found) {
  resolver_works_ = false;
  // An attempt that has gone on without is left alone; one that is to come need not ask again.
  if (state_ != State::Resolving && !(state_ == State::Pausing && found.is_ok())) return;
  loop_->cancel_timer(timer_);
  state_ = State::Idle;
  if (!found.is_ok() && options_.seen_host.empty()) return retry(found.status());
  connect_to_all(found.is_ok() ? std::move(found).value() : std::vector<SocketAddress>());
}

void Dialer::connect_to_all(std::vector<SocketAddress> addresses) {
  std::stable_partition(addresses.begin(), addresses.end(), [&](const SocketAddress& address) {
    return !options_.good_host.empty() && address.host() == options_.good_host;
  });
  if (const auto seen = SocketAddress::parse(options_.seen_host, options_.port);
      seen && !options_.seen_host.empty()) {
    addresses.insert(addresses.begin(), *seen);
  }
  addresses_ = std::move(addresses);
  next_address_ = 0;
  connect();
}

void Dialer::connect() {
  state_ = State::Idle;
  if (addresses_.empty())
    return retry({StatusCode::Network, core::str("no address of '", options_.host, "'")});
  const SocketAddress& address = addresses_[next_address_++];
  began_ = loop_->now();
  if (options_.loopback_only && !address.is_loopback()) {
    return retry(no_plaintext(address.to_string()), Refusal::Untrusted);  // as the name server says
  }
  Result<Fd> fd = start_connect(address, options_.tuning);
  if (!fd.is_ok()) return retry(fd.status());
  const auto handler = loop_->add(fd->get(), this, EPOLLOUT);
  if (!handler.is_ok()) return retry(handler.status());
  const auto drop = [&] { loop_->remove(*handler); };
  if (options_.keys == nullptr) {
    connection_ = plain_connection(std::move(fd).value());
  } else {
    Result<std::unique_ptr<Connection>> secured =
        options_.keys->secure(std::move(fd).value(), TlsRole::Dialer, options_.server_name());
    if (!secured.is_ok()) {
      drop();
      return retry(secured.status());
    }
    connection_ = std::move(secured).value();
  }
  handler_ = *handler;
  state_ = State::Connecting;
  limit_handshake(addresses_.size() == 1
                      ? options_.handshake_timeout
                      : std::min(options_.handshake_timeout,
                                 kConnectTimeoutOfSeveral * (1 << std::min(rounds_, kMostDoublings))));
}

void Dialer::limit_handshake(std::chrono::milliseconds limit) {
  timer_ = loop_->add_timer(std::min(began_ + limit, options_.deadline.when()), [this] { on_silence(); });
}

void Dialer::on_silence() {
  if (state_ == State::Resolving && !options_.seen_host.empty()) return connect_to_all({});
  // A busy thread looks at the clock before it hears of a refusal.
  if (const int error = state_ == State::Connecting ? connect_error(connection_->fd()) : 0; error != 0) {
    return retry(with_reason("connecting failed", errno_status(error)));
  }
  // An attempt that the deadline cuts short knows less than the whole one before.
  if (rounds_ > 0 && options_.deadline.expired()) return give_up(last_failure_);
  retry({StatusCode::Network,
         state_ == State::Resolving
             ? core::str("no answer from the name servers for '", options_.host, "': check /etc/resolv.conf")
         : state_ == State::Connecting ? "no answer (packets are dropped: firewall, or wrong address?)"
                                       : "connected, but no geocomm answers there"});
}

void Dialer::on_ready(std::uint32_t) {
  if (state_ == State::Connecting) {
    if (const int error = connect_error(connection_->fd()); error != 0) {
      return retry(with_reason("connecting failed", errno_status(error)));
    }
    state_ = State::Securing;
    if (addresses_.size() > 1) {
      loop_->cancel_timer(timer_);
      limit_handshake(options_.handshake_timeout);
    }
  }
  state_ == State::Securing ? secure() : read_reply();
}

void Dialer::secure() {
  const Result<bool> done = connection_->handshake();
  if (done.is_ok() && !*done) return loop_->modify(handler_, connection_->wanted_events());
  Status why = done.is_ok() ? check_site() : done.status();
  if (why.is_ok()) return send_hello();
  if (why.code() != StatusCode::Authentication) return retry(std::move(why));
  // So that both sides know.
  send_refuse(*connection_, why);
  retry(std::move(why), Refusal::Untrusted);
}

Status Dialer::check_site() const {
  const TlsName* name = connection_->peer_name();
  if (name == nullptr || options_.site.empty() || name->site == options_.site) return Status::ok();
  return wrong_site(*name, options_.site);
}

void Dialer::send_hello() {
  hello_ = options_.hello();
  if (const Status sent = send_hello_packet(*connection_, PacketType::Hello, hello_); !sent.is_ok()) {
    return retry(with_reason("sending Hello failed", sent));
  }
  state_ = State::Reading;
  said_hello_ = loop_->now();
  loop_->modify(handler_, connection_->wanted_events());
  if (connection_->has_more()) loop_->again(handler_, EPOLLIN);
}

void Dialer::read_reply() {
  for (;;) {
    // Exactly the reply: what follows a Welcome is the stream's.
    const std::size_t wanted =
        reply_bytes_ < kHeaderBytes ? kHeaderBytes : kHeaderBytes + reply_header_.length;
    if (reply_bytes_ == wanted) break;
    const iovec part{reply_.data() + reply_bytes_, wanted - reply_bytes_};
    const Result<Connection::Received> received = connection_->read({&part, 1});
    if (!received.is_ok()) {
      return retry(with_reason("the connection broke before Welcome", received.status()));
    }
    if (received->ended) {
      return retry({StatusCode::Network,
                    "the connection was closed before Welcome (the peer is not ready, or "
                    "something else listens there)"});
    }
    if (received->bytes == 0) return;
    reply_bytes_ += received->bytes;
    if (!may_be_header(std::span(reply_).first(std::min(reply_bytes_, kHeaderBytes)))) {
      return retry({StatusCode::Network, "something that is not geocomm listens there"});
    }
    if (reply_bytes_ != kHeaderBytes) continue;
    const auto header = parse_header_of_any_version(std::span(reply_).first<kHeaderBytes>());
    if (!header.is_ok()) return retry(header.status());
    reply_header_ = *header;
    const auto type = static_cast<PacketType>(reply_header_.type);
    const bool welcome = type == PacketType::Welcome && reply_header_.version == kWireVersion &&
                         reply_header_.length == sizeof(HelloPayload);
    const bool refuse = type == PacketType::Refuse && reply_header_.length <= kMaxRefuseBytes;
    if (!welcome && !refuse) return refused(core::corrupt("unexpected answer to Hello"));
  }
  static_cast<PacketType>(reply_header_.type) == PacketType::Welcome ? on_welcome() : on_refuse();
}

void Dialer::on_welcome() {
  DialedStream dialed;
  std::memcpy(&dialed.welcome, reply_.data() + kHeaderBytes, sizeof dialed.welcome);
  if (dialed.welcome.sender != hello_.receiver || dialed.welcome.receiver != hello_.sender) {
    return refused(core::corrupt("welcomed by another process than the one dialed"));
  }
  if (dialed.welcome.stream != hello_.stream || dialed.welcome.stream_count != hello_.stream_count ||
      dialed.welcome.generation != hello_.generation || dialed.welcome.data_path != hello_.data_path) {
    return refused(core::corrupt("welcomed as another stream than the one dialed"));
  }
  loop_->cancel_timer(timer_);
  loop_->remove(handler_);
  dialed.connection = std::move(connection_);
  state_ = State::Idle;
  // The callback may destroy this object.
  const Done done = std::move(done_);
  done(std::move(dialed));
}

void Dialer::on_refuse() {
  Status why = refusal_of(reply_header_, std::span(reply_).subspan(kHeaderBytes, reply_header_.length));
  const StatusCode code = why.code();
  if (reply_header_.version != kWireVersion || code == StatusCode::VersionMismatch) {
    return refused(version_mismatch(reply_header_.version));
  }
  if (code != kTryAgain || options_.resuming) return refused(std::move(why));
  retry(Status(StatusCode::Authentication, why.message()));
}

void Dialer::refused(Status why) {
  const bool proven = connection_->peer_name() != nullptr;
  retry(std::move(why), proven ? Refusal::Proven : Refusal::Unproven);
}

void Dialer::retry(Status why, Refusal refusal) {
  disconnect();
  ++attempts_;
  if (next_address_ > 0) tried_[addresses_[next_address_ - 1].to_string()] = why.message();
  if (const Weight weight = weight_of(why, refusal); next_address_ <= 1 || weight >= last_weight_) {
    last_refusal_ = why.sys_errno() == ECONNREFUSED ? Refusal::Unproven : refusal;
    last_failure_ = std::move(why);
    last_weight_ = weight;
  }
  if (next_address_ < addresses_.size() && last_weight_ != kThePeer && !options_.deadline.expired()) {
    return pause(loop_->now());
  }
  next_address_ = addresses_.size();
  ++rounds_;
  if (!options_.on_failed_attempt(told(last_failure_), last_refusal_)) return give_up(last_failure_);
  const auto base =
      std::min(kFirstDialPause * (1 << std::min(rounds_ - 1, kMostDoublings)), options_.longest_pause);
  const auto when = loop_->now() + base / 2 + jitter(base / 2);
  if (when >= options_.deadline.when()) return give_up(last_failure_);
  pause(when);
}

Status Dialer::told(Status why) const {
  if (tried_.size() < 2) return why;
  std::string all;
  for (const auto& [address, answer] : tried_)
    all += core::str(all.empty() ? "" : "; ", address, ": ", answer);
  return Status(why.code(), all).with_errno(why.sys_errno());
}

void Dialer::give_up(Status why) {
  const int error = why.sys_errno();
  disconnect();
  Status status(
      why.code(),
      core::str("cannot connect to ", options_.peer, " at ", options_.host, ":", options_.port,
                options_.seen_host.empty() ? "" : core::str(" nor ", options_.seen_host), " (", attempts_,
                attempts_ == 1 ? " failed attempt): " : " failed attempts): ", told(why).message(),
                why.code() == StatusCode::Network ||
                        (why.code() == StatusCode::Authentication && last_refusal_ == Refusal::None)
                    ? ". Check that the peer runs, the firewalls between, and GEOCOMM_ADDRESS and "
                      "GEOCOMM_PORT there"
                    : ""));
  const Done done = std::move(done_);
  done(std::move(status).with_peer(std::string(options_.peer)).with_errno(error));
}

}  // namespace geocomm::transport
