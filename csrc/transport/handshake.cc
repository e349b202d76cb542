#include "transport/handshake.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/str.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

Status send_hello_frame(Connection& connection, FrameType type, const HelloPayload& payload) {
  WireHeader header = make_header(type);
  header.length = sizeof payload;
  std::array<std::byte, kHeaderBytes + sizeof payload> frame;
  const HeaderBytes bytes = encode_header(header);
  std::memcpy(frame.data(), bytes.data(), kHeaderBytes);
  std::memcpy(frame.data() + kHeaderBytes, &payload, sizeof payload);
  const iovec part{frame.data(), frame.size()};
  const Result<std::size_t> sent = connection.write({&part, 1});
  if (!sent.is_ok()) return sent.status();
  if (*sent < frame.size()) return {StatusCode::Network, "a new connection takes no bytes"};
  return Status::ok();
}

void send_refuse(Connection& connection, const Status& why) {
  const std::string reason = why.message().substr(0, kMaxRefuseBytes);
  WireHeader header = make_header(FrameType::Refuse);
  header.code = static_cast<std::uint16_t>(why.code());
  header.length = static_cast<std::uint32_t>(reason.size());
  const HeaderBytes bytes = encode_header(header);
  std::string frame(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  frame += reason;
  const iovec part{frame.data(), frame.size()};
  // Who does not get it sees the connection end.
  if (connection.write({&part, 1}).is_ok()) (void)connection.finish();
}

Status no_plaintext(const std::string& address) {
  return {StatusCode::AuthFailed,
          core::str("security=required allows no plaintext to or from ", address,
                    ", only loopback: TLS between sites is not there yet in this version. Set "
                    "GEOCOMM_SECURITY=insecure to send plaintext over a network you trust")};
}

std::string short_id(const ProcessId& id) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < 4; ++i) {
    text += kDigits[id[i] >> 4];
    text += kDigits[id[i] & 15];
  }
  return text;
}

Status HalfOpen::start() {
  GEOCOMM_ASSIGN_OR_RETURN(handler_, loop_.add(connection_->fd(), this, EPOLLIN));
  return Status::ok();
}

void HalfOpen::detach() {
  if (connection_ && handler_ != 0) loop_.remove(std::exchange(handler_, 0));
}

std::unique_ptr<Connection> HalfOpen::take() {
  detach();
  return std::move(connection_);
}

void HalfOpen::on_ready(std::uint32_t) {
  if (!secured_) {
    const Result<bool> done = connection_->handshake();
    if (!done.is_ok()) return finish(done.status());
    secured_ = *done;
    loop_.modify(handler_, secured_ ? std::uint32_t{EPOLLIN} : connection_->wanted_events());
    if (!secured_) return;
  }
  read_hello();
}

void HalfOpen::read_hello() {
  for (;;) {
    // Exactly the Hello: what follows is the stream's.
    const iovec part{bytes_.data() + received_, wanted_ - received_};
    const Result<Connection::Received> more = connection_->read({&part, 1});
    if (!more.is_ok()) return finish(more.status());
    if (more->ended) return finish(Status(StatusCode::Network, "closed before Hello"));
    if (more->bytes == 0) return;
    received_ += more->bytes;
    if (!may_be_header(std::span(bytes_).first(std::min(received_, kHeaderBytes)))) {
      return finish(Status(StatusCode::CorruptData, "does not speak geocomm"));
    }
    if (received_ < wanted_) continue;
    if (wanted_ == kHeaderBytes) {
      const Result<WireHeader> header = parse_header_of_any_version(std::span(bytes_).first<kHeaderBytes>());
      if (!header.is_ok()) return finish(header.status());
      // Of another version, what is needed for the refusal stands at its start.
      const bool same = header->version == kWireVersion;
      const bool fits = same ? header->length == sizeof(HelloPayload) : header->length >= kCommonHelloBytes;
      if (static_cast<FrameType>(header->type) != FrameType::Hello || !fits) {
        return finish(Status(StatusCode::CorruptData, "does not begin with Hello"));
      }
      version_ = header->version;
      wanted_ += same ? sizeof(HelloPayload) : kCommonHelloBytes;
      continue;
    }
    ReceivedHello hello;
    hello.version = version_;
    std::memcpy(&hello.payload, bytes_.data() + kHeaderBytes, wanted_ - kHeaderBytes);
    return finish(hello);
  }
}

void HalfOpen::finish(Result<ReceivedHello> hello) {
  const Done done = std::move(done_);
  done(*this, std::move(hello));
}

}  // namespace geocomm::transport
