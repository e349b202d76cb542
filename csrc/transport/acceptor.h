// The listener and the connections whose Hello is not complete yet. All on the IO thread.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>

#include "core/log.h"
#include "core/status.h"
#include "transport/handshake.h"
#include "transport/handshake_gate.h"
#include "transport/io_loop.h"
#include "transport/socket.h"
#include "transport/tls_keys.h"

namespace geocomm::transport {

class Acceptor : public IoHandler {
 public:
  // A complete Hello, of any version. Takes the connection (also to close it without a word), or leaves it to
  // be refused with the Status.
  using OnHello = std::function<core::Status(HalfOpen& half_open, const ReceivedHello& hello)>;

  // `keys` (null: plaintext) outlives it.
  Acceptor(IoLoop& loop, Fd listener, TlsKeys* keys, OnHello on_hello)
      : loop_(loop),
        listener_(std::move(listener)),
        keys_(keys),
        gate_(loop),
        on_hello_(std::move(on_hello)) {}
  ~Acceptor() override { close(); }
  core::Status start();
  void close();
  void on_ready(std::uint32_t events) override;

  static constexpr std::size_t kMaxHalfOpen = 1024;

 private:
  struct Waiting {
    std::unique_ptr<HalfOpen> connection;
    IoLoop::TimerId timer;
  };

  void add(Fd fd);
  void drop(const HalfOpen& connection);
  void drop(std::list<Waiting>::iterator waiting);
  void pause();
  core::LogLevel warning();
  void on_hello(HalfOpen& half_open, const core::Result<ReceivedHello>& hello);

  IoLoop& loop_;
  Fd listener_;
  TlsKeys* const keys_;
  HandshakeGate gate_;
  OnHello on_hello_;
  IoLoop::HandlerId handler_ = 0;
  IoLoop::TimerId pause_{};
  std::list<Waiting> waiting_;  // oldest first
  IoLoop::Clock::time_point next_warning_{};
};

}  // namespace geocomm::transport
