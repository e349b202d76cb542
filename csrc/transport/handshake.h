// The accepting side of the handshake, and what both sides share of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "core/status.h"
#include "transport/io_loop.h"
#include "transport/socket.h"
#include "transport/wire.h"

namespace geocomm::transport {

// Refuse with this code means: not yet, dial again. Any other code is final.
inline constexpr core::StatusCode kTryAgain = core::StatusCode::Timeout;

// Sends Hello or Welcome on a new connection. False (errno) if the kernel did not take all of it at once.
bool send_hello_frame(int fd, FrameType type, const HelloPayload& payload);
// Sends Refuse, as well as it goes.
void send_refuse(int fd, const core::Status& why);
// AuthFailed: no plaintext over a network under Security::Required.
core::Status no_plaintext(const std::string& address);
// "3f2a9c41": enough of an id to tell processes apart.
std::string short_id(const ProcessId& id);

struct ReceivedHello {
  std::uint8_t version = 0;
  HelloPayload payload{};
};

// An accepted connection whose Hello is not complete. On the IO thread.
class HalfOpen : public IoHandler {
 public:
  // Called once: with the Hello (of any version), or CorruptData / Network when there will be none. May
  // destroy this object.
  using Done = std::function<void(HalfOpen&, core::Result<ReceivedHello>)>;

  HalfOpen(IoLoop& loop, Fd fd, Done done) : loop_(loop), fd_(std::move(fd)), done_(std::move(done)) {}
  ~HalfOpen() override { detach(); }
  core::Status start();
  void on_ready(std::uint32_t events) override;

  int fd() const { return fd_.get(); }
  // Gives the connection up to a stream.
  Fd take();

 private:
  void detach();
  void finish(core::Result<ReceivedHello> hello);

  IoLoop& loop_;
  Fd fd_;
  Done done_;
  IoLoop::HandlerId handler_ = 0;
  std::array<std::byte, kHeaderBytes + sizeof(HelloPayload)> bytes_{};
  std::size_t received_ = 0;
};

}  // namespace geocomm::transport
