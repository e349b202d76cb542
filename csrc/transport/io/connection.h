// Connection: the byte stream under Stream, Dialer and HalfOpen, plain TCP or TLS over it.
//
// Nothing here blocks: a call moves what it can at once. After one that moved nothing, wait until the socket
// is as wanted_events() says (during the handshake) or readable / writable (later). All on the IO thread.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "core/status.h"
#include "transport/io/socket.h"

namespace geocomm::transport {

struct TlsName;
// A secret that only the two ends of a TLS session know.
using BindingKey = std::array<std::uint8_t, 32>;

class Connection {
 public:
  struct Received {
    std::size_t bytes = 0;  // 0, unless `ended`: nothing there yet
    bool ended = false;     // the peer sends no more
  };

  virtual ~Connection() = default;  // closes
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // True once both ends have proved who they are (at once on a plain connection); nothing may be read or
  // written before. An error ends the connection.
  virtual core::Result<bool> handshake() = 0;
  // EPOLLIN or EPOLLOUT: what the handshake waits for.
  virtual std::uint32_t wanted_events() const = 0;

  // Fills `parts` in their order, as far as there is something. Less than all of them means that the socket
  // has no more. Network error with errno when the connection broke.
  virtual core::Result<Received> read(std::span<const iovec> parts) = 0;
  // Whether read() may have something although the socket does not become readable.
  virtual bool has_more() const = 0;
  // Returns how many bytes of `parts` it took. The next call must begin with the byte after them, and after
  // less than all offer at least the rest of the same bytes (at any address). Network error as read().
  virtual core::Result<std::size_t> write(std::span<const iovec> parts) = 0;
  // Ends the sending direction. False: again when writable, and when write() has taken all.
  virtual core::Result<bool> finish() = 0;

  // Who the peer is by its certificate; null on a plain connection, and before the handshake is done.
  virtual const TlsName* peer_name() const { return nullptr; }
  // Any thread, once the handshake is done. Empty: plaintext.
  virtual std::string_view cipher() const { return {}; }
  // Precondition: peer_name() is not null.
  virtual core::Result<BindingKey> binding_key() const;

  int fd() const { return fd_.get(); }

 protected:
  explicit Connection(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

// Over the connected (or connecting), non-blocking socket `fd`.
std::unique_ptr<Connection> plain_connection(Fd fd);

}  // namespace geocomm::transport
