// The accepting side of the handshake, and what both sides share of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/status.h"
#include "transport/connection.h"
#include "transport/io_loop.h"
#include "transport/wire.h"

namespace geocomm::transport {

// Refuse with this code means: not yet, dial again. Any other code is final.
inline constexpr core::StatusCode kTryAgain = core::StatusCode::Timeout;

// Sends Hello or Welcome on a new connection. Network if the kernel does not take all of it at once.
core::Status send_hello_frame(Connection& connection, FrameType type, const HelloPayload& payload);
// Sends Refuse, as well as it goes.
void send_refuse(Connection& connection, const core::Status& why);
// AuthFailed: no plaintext over a network under Security::Required.
core::Status no_plaintext(const std::string& address);
// "3f2a9c41": enough of an id to tell processes apart.
std::string short_id(const ProcessId& id);

struct ReceivedHello {
  std::uint8_t version = 0;
  HelloPayload payload{};  // of another version: its first kCommonHelloBytes, then zeros
};

// An accepted connection whose Hello is not complete. On the IO thread.
class HalfOpen : public IoHandler {
 public:
  // Called once: with the Hello (of any version), or CorruptData / Network when there will be none. May
  // destroy this object.
  using Done = std::function<void(HalfOpen&, core::Result<ReceivedHello>)>;

  HalfOpen(IoLoop& loop, std::unique_ptr<Connection> connection, Done done)
      : loop_(loop), connection_(std::move(connection)), done_(std::move(done)) {}
  ~HalfOpen() override { detach(); }
  core::Status start();
  void on_ready(std::uint32_t events) override;

  // Until take().
  Connection& connection() { return *connection_; }
  // Gives the connection up to a stream.
  std::unique_ptr<Connection> take();

 private:
  void detach();
  void read_hello();
  void finish(core::Result<ReceivedHello> hello);

  IoLoop& loop_;
  std::unique_ptr<Connection> connection_;
  Done done_;
  IoLoop::HandlerId handler_ = 0;
  bool secured_ = false;  // the connection's own handshake is done
  std::array<std::byte, kHeaderBytes + sizeof(HelloPayload)> bytes_{};
  std::size_t wanted_ = kHeaderBytes;  // then the payload as well
  std::size_t received_ = 0;
  std::uint8_t version_ = 0;
};

}  // namespace geocomm::transport
