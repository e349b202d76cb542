// The accepting side of the handshake, and what both sides share of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/status.h"
#include "transport/io/connection.h"
#include "transport/io/io_loop.h"
#include "transport/io/socket.h"
#include "transport/io/tls_keys.h"
#include "transport/link/handshake_gate.h"
#include "transport/link/link_mark.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

// Refuse with this code means: not yet, dial again. Any other code is final.
inline constexpr core::StatusCode kTryAgain = core::StatusCode::Timeout;

// Sends Hello or Welcome on a new connection. Network if the kernel does not take all of it at once.
core::Status send_hello_packet(Connection& connection, PacketType type, const HelloPayload& payload);
// Sends Refuse, as well as it goes.
void send_refuse(Connection& connection, const core::Status& why);
// What a Refuse says: the peer's code and reason, fit to be shown.
core::Status refusal_of(const WireHeader& header, std::span<const std::byte> reason);
// What a new connection begins with; nothing yet if `bytes` is 0.
struct FirstByte {
  ssize_t bytes = 0;  // as recv() returns them
  std::uint8_t value = 0;
  bool is_tls() const { return bytes == 1 && value == 0x16; }  // a handshake record
};
FirstByte peek_first_byte(int fd);
// Authentication: no plaintext over a network under Security::Required.
core::Status no_plaintext(const std::string& address);
// Authentication: a certificate of another site than the process at hand belongs to.
core::Status wrong_site(const TlsName& certified, const std::string& expected);
// "3f2a9c41": enough of an id to tell processes apart.
std::string short_id(const ProcessId& id);

struct ReceivedHello {
  std::uint8_t version = 0;
  HelloPayload payload{};  // of another version: its first kCommonHelloBytes, then zeros
};

// How much of the payload of a connection's first packet is of use, at most kMaxRefuseBytes. CorruptData
// unless it is a Hello (of any version), or the Refuse of a dialer that does not trust this side.
core::Result<std::size_t> opening_payload_bytes(const WireHeader& header);

// Half-open connections of one source. An address that peers have is served first, and proves nothing; links
// that come back go before even those.
struct Crowd {
  bool returning = false;
  bool known = false;
  std::array<std::size_t, 2> connections{};  // before and since TLS has begun
};

// An accepted connection whose Hello is not complete. On the IO thread.
class HalfOpen : public IoHandler {
 public:
  // A complete ClientHello with a mark of a link, before anything is done about it.
  using Marked = std::function<void(HalfOpen&, const LinkMark&)>;
  // TLS begins: from now on the connection takes memory.
  using Begun = std::function<void(HalfOpen&)>;
  // Called once: with the Hello (of any version), or CorruptData / Network when there will be none. May
  // destroy this object.
  using Done = std::function<void(HalfOpen&, core::Result<ReceivedHello>)>;

  // With `keys`, only TLS comes as far as a Hello; without, only plaintext. All outlive this object. `number`
  // grows from connection to connection.
  HalfOpen(IoLoop& loop, Fd fd, TlsKeys* keys, HandshakeGate& gate, const Crowd& crowd, std::uint64_t number,
           Marked marked, Begun begun, Done done)
      : loop_(loop),
        fd_(std::move(fd)),
        keys_(keys),
        gate_(gate),
        crowd_(&crowd),
        number_(number),
        marked_(std::move(marked)),
        begun_(std::move(begun)),
        done_(std::move(done)) {}
  ~HalfOpen() override { detach(); }
  core::Status start();
  void on_ready(std::uint32_t events) override;
  // Whose handshake is worked on first.
  bool goes_before(const HalfOpen& other) const;
  void move_to(const Crowd& crowd) { crowd_ = &crowd; }

  int fd() const { return connection_ ? connection_->fd() : fd_.get(); }
  // Null before there is something to do, and after take().
  Connection* connection() { return connection_.get(); }
  // Gives the connection up to a stream (or to be closed).
  std::unique_ptr<Connection> take();

 private:
  void detach();
  bool begin(std::uint32_t events);
  bool client_hello_is_there(std::uint32_t events);
  void look_for_mark();
  bool secure();
  void read_hello();
  void finish(core::Result<ReceivedHello> hello);

  IoLoop& loop_;
  Fd fd_;  // until there is a connection
  TlsKeys* const keys_;
  HandshakeGate& gate_;
  const Crowd* crowd_;
  const std::uint64_t number_;
  std::unique_ptr<Connection> connection_;
  Marked marked_;
  Begun begun_;
  Done done_;
  IoLoop::HandlerId handler_ = 0;
  bool queued_ = false;   // at the gate
  bool secured_ = false;  // the connection's own handshake is done
  std::array<std::byte, kHeaderBytes + kMaxRefuseBytes> bytes_{};
  std::size_t wanted_ = kHeaderBytes;  // then the payload as well
  std::size_t received_ = 0;
  WireHeader header_{};
};

}  // namespace geocomm::transport
