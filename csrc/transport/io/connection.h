// Connection: the byte stream under Stream, Dialer and HalfOpen, plain TCP or TLS over it.
//
// Nothing here blocks: a call moves what it can at once. Who waits for more watches the socket for
// wanted_events(): the handshake and read() go on when it is readable, write() when one of those is there.
//
// read() never waits for room in the socket: what TLS has to answer on the way is kept here until there is
// some (has_unsent()). So two ends that both have full sockets always read on. Calls exclude each other.
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
  // What to watch the socket for; `writes`: write() has taken less than all, or is to take more.
  std::uint32_t wanted_events(bool writes = false) const;

  // Fills `parts` in their order, as far as there is something. Less than all of them means that the socket
  // has no more. Network error with errno when the connection broke.
  virtual core::Result<Received> read(std::span<const iovec> parts) = 0;
  // Whether read() may have something although the socket does not become readable. Any call may change it.
  virtual bool has_more() const { return false; }
  // Returns how many bytes of `parts` it took: the next call begins with the byte after them. Network error
  // as read().
  virtual core::Result<std::size_t> write(std::span<const iovec> parts) = 0;
  // What was taken, or TLS has to say, waits here for room in the socket. write() sends it first, and with no
  // parts it alone. Any call may change it.
  virtual bool has_unsent() const { return false; }
  // Sends all of `parts` on a new connection. Network if the kernel does not take it at once.
  core::Status write_at_once(std::span<const iovec> parts);
  // Ends the sending direction behind what write() took, as far as the socket has room at once.
  virtual void finish() = 0;

  // Who the peer is by its certificate; null on a plain connection, and before the handshake is done.
  virtual const TlsName* peer_name() const { return nullptr; }
  // Any thread, once the handshake is done. Empty: plaintext.
  virtual std::string_view cipher() const { return {}; }
  // Precondition: peer_name() is not null.
  virtual core::Result<BindingKey> binding_key() const;

  int fd() const { return fd_.get(); }

 protected:
  explicit Connection(Fd fd) : fd_(std::move(fd)) {}
  // write() takes nothing until read() has had more from the socket.
  virtual bool must_read_first() const { return false; }

  Fd fd_;
};

// Over the connected (or connecting), non-blocking socket `fd`.
std::unique_ptr<Connection> plain_connection(Fd fd);

}  // namespace geocomm::transport
