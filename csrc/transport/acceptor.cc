#include "transport/acceptor.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "core/log.h"
#include "transport/dialer.h"

namespace geocomm::transport {

using core::LogLevel;
using core::Result;
using core::Status;
using core::StatusCode;

namespace {
constexpr int kAcceptsPerTurn = 64;
// Without descriptors or memory: the listener stays readable, and looking at once would be a busy loop.
constexpr std::chrono::milliseconds kAcceptPause{200};
constexpr std::chrono::seconds kWarningInterval{1};
}  // namespace

Status Acceptor::start() {
  GEOCOMM_ASSIGN_OR_RETURN(handler_, loop_.add(listener_.get(), this, EPOLLIN));
  return Status::ok();
}

void Acceptor::close() {
  if (!listener_.valid()) return;
  loop_.cancel_timer(pause_);
  loop_.remove(handler_);
  listener_.reset();
  while (!waiting_.empty()) drop(waiting_.begin());
}

void Acceptor::on_ready(std::uint32_t) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      add(std::move(fd));
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
  pause_ = loop_.add_timer(IoLoop::Clock::now() + kAcceptPause, [this] { loop_.modify(handler_, EPOLLIN); });
}

void Acceptor::add(Fd fd) {
  if (waiting_.size() >= kMaxHalfOpen) drop(waiting_.begin());
  auto connection = std::make_unique<HalfOpen>(
      loop_, std::move(fd), keys_, gate_,
      [this](HalfOpen& self, Result<ReceivedHello> hello) { on_hello(self, hello); });
  if (!connection->start().is_ok()) return;
  const HalfOpen* raw = connection.get();
  const auto timer = loop_.add_timer(IoLoop::Clock::now() + kHandshakeTimeout, [this, raw] { drop(*raw); });
  waiting_.push_back({std::move(connection), timer});
}

void Acceptor::drop(const HalfOpen& connection) {
  drop(std::find_if(waiting_.begin(), waiting_.end(),
                    [&](const Waiting& waiting) { return waiting.connection.get() == &connection; }));
}

void Acceptor::drop(std::list<Waiting>::iterator waiting) {
  if (waiting == waiting_.end()) return;
  loop_.cancel_timer(waiting->timer);
  waiting_.erase(waiting);
}

// Strangers cannot fill the log.
LogLevel Acceptor::warning() {
  const auto now = IoLoop::Clock::now();
  if (now < next_warning_) return LogLevel::Debug;
  next_warning_ = now + kWarningInterval;
  return LogLevel::Warning;
}

void Acceptor::on_hello(HalfOpen& half_open, const Result<ReceivedHello>& hello) {
  const std::string from = SocketAddress::peer_of(half_open.fd()).to_string();
  Status refusal = hello.is_ok() ? on_hello_(half_open, *hello) : hello.status();
  // Who speaks another language gets no answer, a peer without the right keys does.
  const bool answer = hello.is_ok() || refusal.code() == StatusCode::AuthFailed;
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
