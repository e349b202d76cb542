#include "transport/link/handshake.h"

#include <openssl/ssl3.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "core/str.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {
// A ClientHello that a geocomm made is shorter, also with a key of a post-quantum group.
constexpr std::size_t kSeenOfHello = 4096;
}  // namespace

Status send_hello_packet(Connection& connection, PacketType type, const HelloPayload& payload) {
  WireHeader header = make_header(type);
  header.length = sizeof payload;
  std::array<std::byte, kHeaderBytes + sizeof payload> packet;
  const HeaderBytes bytes = encode_header(header);
  std::memcpy(packet.data(), bytes.data(), kHeaderBytes);
  std::memcpy(packet.data() + kHeaderBytes, &payload, sizeof payload);
  const iovec part{packet.data(), packet.size()};
  return connection.write_at_once({&part, 1});
}

void send_refuse(Connection& connection, const Status& why) {
  const std::string reason = why.message().substr(0, kMaxRefuseBytes);
  WireHeader header = make_header(PacketType::Refuse);
  header.code = static_cast<std::uint16_t>(why.code());
  header.length = static_cast<std::uint32_t>(reason.size());
  const HeaderBytes bytes = encode_header(header);
  std::string packet(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  packet += reason;
  const iovec part{packet.data(), packet.size()};
  // Who does not get it sees the connection end.
  if (connection.write_at_once({&part, 1}).is_ok()) connection.finish();
}

Status refusal_of(const WireHeader& header, std::span<const std::byte> reason) {
  const bool known = header.code >= static_cast<std::uint16_t>(StatusCode::InvalidArgument) &&
                     header.code <= static_cast<std::uint16_t>(StatusCode::Internal);
  std::string text = "refused by the peer: ";
  // What a peer says is shown, but not what it could do to a terminal or a log.
  for (const std::byte byte : reason) {
    const auto c = static_cast<unsigned char>(byte);
    text += c < 0x20 || c == 0x7F ? '?' : static_cast<char>(c);
  }
  return {known ? static_cast<StatusCode>(header.code) : StatusCode::Network, text};
}

FirstByte peek_first_byte(int fd) {
  FirstByte first;
  first.bytes = ::recv(fd, &first.value, 1, MSG_PEEK | MSG_DONTWAIT);
  return first;
}

Status no_plaintext(const std::string& address) {
  return {
      StatusCode::Authentication,
      core::str("security=required allows no plaintext to or from ", address,
                ", only loopback. Make keys with `geocomm keys create` and set GEOCOMM_KEYS to the folder of "
                "this site, or set GEOCOMM_SECURITY=insecure to send plaintext over a network you trust")};
}

Status wrong_site(const TlsName& certified, const std::string& expected) {
  return {StatusCode::Authentication,
          core::str("a process of site '", expected, "' presents the certificate of another site (",
                    certified.uri(), "): check GEOCOMM_KEYS and GEOCOMM_SITE there")};
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

Result<std::size_t> opening_payload_bytes(const WireHeader& header) {
  const auto type = static_cast<PacketType>(header.type);
  if (type == PacketType::Refuse && header.length <= kMaxRefuseBytes) return std::size_t{header.length};
  // Of another version, what is needed for the refusal stands at its start.
  const bool same = header.version == kWireVersion;
  const bool fits = same ? header.length == sizeof(HelloPayload) : header.length >= kCommonHelloBytes;
  if (type != PacketType::Hello || !fits) return core::corrupt("does not begin with Hello");
  return same ? sizeof(HelloPayload) : kCommonHelloBytes;
}

Status HalfOpen::start() {
  GEOCOMM_ASSIGN_OR_RETURN(handler_, loop_.add(fd_.get(), this, EPOLLIN | EPOLLRDHUP));
  return Status::ok();
}

void HalfOpen::detach() {
  gate_.forget(*this);
  if (handler_ != 0) loop_.remove(std::exchange(handler_, 0));
}

std::unique_ptr<Connection> HalfOpen::take() {
  detach();
  return std::move(connection_);
}

void HalfOpen::on_ready(std::uint32_t events) {
  // At the gate, only a broken connection is reported.
  if (queued_ && events != 0) return finish(Status(StatusCode::Network, "broke before Hello"));
  if (!connection_ && !begin(events)) return;
  if (!secured_ && !secure()) return;
  read_hello();
}

// What was begun is ended first: it holds memory, and its second step costs less than the first. Of a flood
// from one address the newest is served: those that came before have had their time.
bool HalfOpen::goes_before(const HalfOpen& other) const {
  const auto rank = [](const HalfOpen& one) {
    const bool begun = one.connection_ != nullptr;
    const Crowd& crowd = *one.crowd_;
    const std::size_t size = crowd.connections[0] + crowd.connections[1];
    return std::tuple(!crowd.returning, !begun, !crowd.known, size, ~one.number_);
  };
  return rank(*this) < rank(other);
}

// False: nothing there yet, or finished.
bool HalfOpen::begin(std::uint32_t events) {
  const FirstByte first = peek_first_byte(fd_.get());
  if (first.bytes < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (first.bytes <= 0) {
    finish(Status(StatusCode::Network, "closed before Hello"));
    return false;
  }
  if (keys_ == nullptr || !first.is_tls()) {
    connection_ = plain_connection(std::move(fd_));
    secured_ = true;
    if (!first.is_tls()) return true;
    finish(Status(StatusCode::Authentication,
                  "it speaks TLS, while this side has no keys: set GEOCOMM_KEYS on all sites, or on none"));
    return false;
  }
  return client_hello_is_there(events);
}

// Whether the whole first record is. Until then a connection costs no memory for TLS, and no time.
bool HalfOpen::client_hello_is_there(std::uint32_t events) {
  std::array<std::uint8_t, SSL3_RT_HEADER_LENGTH> head;
  const ssize_t seen = ::recv(fd_.get(), head.data(), head.size(), MSG_PEEK | MSG_DONTWAIT);
  std::size_t wanted = head.size();
  if (seen == static_cast<ssize_t>(head.size())) {
    wanted += std::min<std::size_t>(head[3] << 8 | head[4], SSL3_RT_MAX_PLAIN_LENGTH);
  }
  int there = 0;
  const bool complete = ::ioctl(fd_.get(), FIONREAD, &there) != 0 || there >= static_cast<int>(wanted);
  const int low_water = complete ? 1 : static_cast<int>(wanted);
  // Where the kernel knows no such thing, TLS begins with what there is.
  const bool waits = ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof low_water) == 0;
  if (complete) look_for_mark();
  if (complete || !waits) return true;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    finish(Status(StatusCode::Network, "closed before Hello"));
  }
  return false;
}

void HalfOpen::look_for_mark() {
  if (queued_) return;
  std::array<char, kSeenOfHello> seen;
  const ssize_t bytes = ::recv(fd_.get(), seen.data(), seen.size(), MSG_PEEK | MSG_DONTWAIT);
  if (bytes <= 0) return;
  const auto mark = find_mark({seen.data(), static_cast<std::size_t>(bytes)});
  if (mark) marked_(*this, *mark);
}

// False: not done, or finished.
bool HalfOpen::secure() {
  queued_ = !gate_.enter(*this);
  if (queued_) {
    loop_.modify(handler_, 0);
    return false;
  }
  if (!connection_) {
    begun_(*this);
    Result<std::unique_ptr<Connection>> connection = keys_->secure(std::move(fd_), TlsRole::Acceptor);
    if (!connection.is_ok()) {
      gate_.leave();
      finish(connection.status());
      return false;
    }
    connection_ = std::move(connection).value();
  }
  const Result<bool> done = connection_->handshake();
  gate_.leave();
  if (!done.is_ok()) {
    finish(done.status());
    return false;
  }
  secured_ = *done;
  loop_.modify(handler_, connection_->wanted_events());
  return secured_;
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
      return finish(core::corrupt("does not speak geocomm"));
    }
    if (received_ < wanted_) continue;
    if (wanted_ == kHeaderBytes) {
      const Result<WireHeader> header = parse_header_of_any_version(std::span(bytes_).first<kHeaderBytes>());
      if (!header.is_ok()) return finish(header.status());
      const Result<std::size_t> payload = opening_payload_bytes(*header);
      if (!payload.is_ok()) return finish(payload.status());
      header_ = *header;
      wanted_ += *payload;
      if (*payload > 0) continue;
    }
    const auto payload = std::span(std::as_const(bytes_)).subspan(kHeaderBytes, wanted_ - kHeaderBytes);
    // A dialer that does not accept this side's certificate.
    if (static_cast<PacketType>(header_.type) == PacketType::Refuse)
      return finish(refusal_of(header_, payload));
    if (keys_ != nullptr && connection_->peer_name() == nullptr) {
      return finish(Status(StatusCode::Authentication,
                           "it speaks plaintext, while this side has keys: set GEOCOMM_KEYS on all sites, or "
                           "on none"));
    }
    ReceivedHello hello;
    hello.version = header_.version;
    std::memcpy(&hello.payload, payload.data(), payload.size());
    return finish(hello);
  }
}

void HalfOpen::finish(Result<ReceivedHello> hello) {
  const Done done = std::move(done_);
  done(*this, std::move(hello));
}

}  // namespace geocomm::transport
