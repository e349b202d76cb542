#include "transport/link/acceptor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "core/log.h"
#include "core/str.h"
#include "transport/link/dialer.h"

namespace geocomm::transport {

using core::LogLevel;
using core::Result;
using core::Status;
using core::StatusCode;

namespace {
constexpr int kAcceptsAtOnce = 64;
constexpr std::chrono::milliseconds kPortPause{100};
// Without descriptors or memory: the listener stays readable, and looking at once would be a busy loop.
constexpr std::chrono::milliseconds kAcceptPause{200};
constexpr std::chrono::seconds kWarningInterval{1};
constexpr std::chrono::seconds kCrowdWarningInterval{10};
// In place of an address.
constexpr const char* kReturning = "links that come back";

// Addresses that one owner has: of IPv6 a whole network of 64 bits.
std::string source_of(const SocketAddress& from) {
  if (from.family() != AF_INET6) return from.host();
  in6_addr address = reinterpret_cast<const sockaddr_in6*>(from.get())->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return from.host();
  std::fill_n(address.s6_addr + 8, 8, std::uint8_t{0});
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(AF_INET6, &address, text, sizeof text);
  return core::str(text, "/64");
}
Result<Fd> listen_once(const std::string& host, std::uint16_t port, bool loopback_only) {
  if (host.empty()) {
    if (loopback_only) return listen_on(*SocketAddress::parse("127.0.0.1", port));
    Result<Fd> both = listen_on(*SocketAddress::parse("::", port));
    // Without IPv6, IPv4 alone.
    if (both.is_ok() || both.status().sys_errno() == EADDRINUSE) return both;
  }
  const auto address = SocketAddress::parse(host.empty() ? "0.0.0.0" : host, port);
  if (!address) {
    return Status(StatusCode::InvalidArgument,
                  core::str("'", host, "' is not a numeric address to listen on"));
  }
  if (loopback_only && !address->is_loopback() && !address->is_wildcard())
    return no_plaintext(address->to_string());
  return listen_on(*address);
}

}  // namespace

Result<Fd> open_listener(const std::string& host, std::uint16_t port, bool loopback_only,
                         std::chrono::milliseconds patience) {
  const auto deadline = core::Deadline::after(patience);
  for (;;) {
    Result<Fd> listener = listen_once(host, port, loopback_only);
    if (listener.is_ok() || listener.status().sys_errno() != EADDRINUSE || port == 0 || deadline.expired())
      return listener;
    std::this_thread::sleep_for(std::min(kPortPause, deadline.remaining()));
  }
}

Acceptor::Acceptor(IoLoop& loop, Fd listener, TlsKeys* keys, IsKnown is_known, IsOurs is_ours,
                   OnHello on_hello)
    : loop_(loop),
      listener_(std::move(listener)),
      keys_(keys),
      gate_(loop),
      is_known_(std::move(is_known)),
      is_ours_(std::move(is_ours)),
      on_hello_(std::move(on_hello)) {
  // Strangers leave the process half of its descriptors.
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return;
  for (std::size_t queue : {0U, 1U}) {
    limits_[queue] =
        std::clamp<std::size_t>(descriptors.rlim_cur / (queue == 0 ? 3 : 6), 1, kMaxHalfOpen[queue]);
  }
}

Status Acceptor::start() {
  GEOCOMM_ASSIGN_OR_RETURN(handler_, loop_.add(listener_.get(), this, EPOLLIN));
  return Status::ok();
}

void Acceptor::close() {
  if (!listener_.valid()) return;
  loop_.cancel_timer(pause_);
  loop_.remove(handler_);
  listener_.reset();
  for (std::size_t queue : {0U, 1U}) {
    while (!queues_[queue].empty()) drop({queue, queues_[queue].begin()});
  }
}

void Acceptor::on_ready(std::uint32_t) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    Fd fd = Fd::made_by([&] {
      return ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size,
                       SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (fd.valid()) {
      add(std::move(fd), SocketAddress(reinterpret_cast<const sockaddr*>(&from), size));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return pause();
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    }  // else: that connection is gone already, or the call was interrupted
  }
}

void Acceptor::pause() {
  core::log(LogLevel::Warning,
            "cannot accept connections for lack of descriptors or memory: check `ulimit -n`");
  loop_.modify(handler_, 0);
  pause_ = loop_.add_timer_in(kAcceptPause, [this] { loop_.modify(handler_, EPOLLIN); });
}

void Acceptor::add(Fd fd, const SocketAddress& from) {
  make_room(0);
  const std::string host = from.host();
  const bool known = is_known_(host);
  const auto crowd = crowds_.try_emplace(known ? host : source_of(from), Crowd{}).first;
  crowd->second.known = known;
  auto connection = std::make_unique<HalfOpen>(
      loop_, std::move(fd), keys_, gate_, crowd->second, ++accepted_,
      [this](HalfOpen& self, const LinkMark& mark) { marked(self, mark); },
      [this](HalfOpen& self) { begun(self); },
      [this](HalfOpen& self, Result<ReceivedHello> hello) { on_hello(self, hello); });
  ++crowd->second.connections[0];
  if (!connection->start().is_ok()) {
    connection.reset();
    return leave_crowd(crowd, 0);
  }
  const HalfOpen* raw = connection.get();
  const auto timer = loop_.add_timer_in(kHandshakeTimeout, [this, raw] { drop(*raw); });
  queues_[0].push_back({std::move(connection), timer, crowd});
  spots_[raw] = {0, std::prev(queues_[0].end())};
}

// From its address's crowd to that of links that come back.
void Acceptor::marked(HalfOpen& connection, const LinkMark& mark) {
  if (!is_ours_(mark)) return;
  Waiting& waiting = *spots_.at(&connection).waiting;
  const auto from = std::exchange(waiting.crowd, crowds_.try_emplace(kReturning, Crowd{}).first);
  Crowd& crowd = waiting.crowd->second;
  crowd.returning = crowd.known = true;
  ++crowd.connections[0];
  connection.move_to(crowd);
  leave_crowd(from, 0);
}

void Acceptor::begun(const HalfOpen& connection) {
  make_room(1);
  Spot& spot = spots_.at(&connection);
  Crowd& crowd = spot.waiting->crowd->second;
  --crowd.connections[0];
  ++crowd.connections[1];
  queues_[1].splice(queues_[1].end(), queues_[0], spot.waiting);
  spot.queue = 1;
}

void Acceptor::make_room(std::size_t queue) {
  Queue& full = queues_[queue];
  if (full.size() < limits_[queue]) return;
  std::size_t known = 0;
  for (const auto& [source, crowd] : crowds_) known += crowd.known ? crowd.connections[queue] : 0;
  const bool of_known = 2 * known > full.size();
  std::size_t most = 0;
  for (const auto& [source, crowd] : crowds_) {
    if (crowd.known == of_known) most = std::max(most, crowd.connections[queue]);
  }
  const auto oldest = std::find_if(full.begin(), full.end(), [&](const Waiting& one) {
    const Crowd& crowd = one.crowd->second;
    return crowd.known == of_known && crowd.connections[queue] == most;
  });
  if (const auto now = loop_.now(); now >= next_crowd_warning_) {
    next_crowd_warning_ = now + kCrowdWarningInterval;
    core::log(LogLevel::Warning, full.size(), " connections have not proved who they are; the oldest of ",
              most, " from ", oldest->crowd->first, " makes room for another");
  }
  drop({queue, oldest});
}

void Acceptor::drop(const HalfOpen& connection) {
  const auto found = spots_.find(&connection);
  if (found != spots_.end()) drop(found->second);
}

void Acceptor::drop(Spot spot) {
  const auto& [queue, waiting] = spot;
  loop_.cancel_timer(waiting->timer);
  const auto crowd = waiting->crowd;
  spots_.erase(waiting->connection.get());
  queues_[queue].erase(waiting);
  leave_crowd(crowd, queue);
}

// After the connection that counts there is gone: it refers to it.
void Acceptor::leave_crowd(Crowds::iterator crowd, std::size_t queue) {
  auto& connections = crowd->second.connections;
  --connections[queue];
  if (connections[0] + connections[1] == 0) crowds_.erase(crowd);
}

// Strangers cannot fill the log.
LogLevel Acceptor::warning() {
  const auto now = loop_.now();
  if (now < next_warning_) return LogLevel::Debug;
  next_warning_ = now + kWarningInterval;
  return LogLevel::Warning;
}

void Acceptor::on_hello(HalfOpen& half_open, const Result<ReceivedHello>& hello) {
  const std::string from = SocketAddress::peer_of(half_open.fd()).to_string();
  Status refusal = hello.is_ok() ? on_hello_(half_open, *hello) : hello.status();
  // Who speaks another language gets no answer, a peer without the right keys does.
  // spec channel 3.1: "The acceptor MUST close a connection without an answer in three cases"
  const bool answer = hello.is_ok() || refusal.code() == StatusCode::Authentication;
  if (!refusal.is_ok()) {
    // InvalidArgument: an attempt that was given up meanwhile, or a peer that asks whether we live.
    const bool usual = refusal.code() == kTryAgain || refusal.code() == StatusCode::InvalidArgument;
    core::log(!answer || usual ? LogLevel::Debug : warning(), "refused a connection from ", from, ": ",
              refusal.message());
  }
  if (Connection* const connection = half_open.connection(); !refusal.is_ok() && answer && connection) {
    // Closing with bytes unread would reset the connection, and the refusal with it.
    std::array<std::byte, 4096> unread;
    (void)::recv(half_open.fd(), unread.data(), unread.size(), MSG_DONTWAIT);
    send_refuse(*connection, refusal);
  }
  drop(half_open);
}

}  // namespace geocomm::transport
