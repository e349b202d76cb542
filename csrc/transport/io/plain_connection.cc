#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "transport/io/connection.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

msghdr message_of(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());  // the kernel only reads it
  message.msg_iovlen = parts.size();
  return message;
}

class PlainConnection final : public Connection {
 public:
  explicit PlainConnection(Fd fd) : Connection(std::move(fd)) {}

  Result<bool> handshake() override { return true; }

  Result<Received> read(std::span<const iovec> parts) override {
    msghdr message = message_of(parts);
    const ssize_t received = ::recvmsg(fd(), &message, MSG_DONTWAIT);
    if (received > 0) return Received{static_cast<std::size_t>(received), false};
    if (received == 0) return Received{0, true};
    if (would_block(errno)) return Received{};
    return errno_status(errno);
  }

  Result<std::size_t> write(std::span<const iovec> parts) override {
    const msghdr message = message_of(parts);
    const ssize_t sent = ::sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (would_block(errno)) return std::size_t{0};
    return errno_status(errno);
  }

  void finish() override { (void)::shutdown(fd(), SHUT_WR); }
};

}  // namespace

std::uint32_t Connection::wanted_events(bool writes) const {
  const bool waits_for_room = has_unsent() || (writes && !must_read_first());
  return EPOLLIN | (waits_for_room ? std::uint32_t{EPOLLOUT} : 0U);
}

Status Connection::write_at_once(std::span<const iovec> parts) {
  std::size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  GEOCOMM_ASSIGN_OR_RETURN(const std::size_t written, write(parts));
  if (written == bytes && !has_unsent()) return Status::ok();
  return {StatusCode::Network, "a new connection takes no bytes"};
}

Result<BindingKey> Connection::binding_key() const {
  return Status(StatusCode::Internal, "a plain connection has no keys");
}

std::unique_ptr<Connection> plain_connection(Fd fd) {
  return std::make_unique<PlainConnection>(std::move(fd));
}

}  // namespace geocomm::transport
