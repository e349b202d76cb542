// A peer made by hand, to say on the wire what an Endpoint never would.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/endpoint.h"
#include "transport/io/socket.h"
#include "transport/wire/wire.h"

namespace geocomm::transport::testing {

// A blocking connection to 127.0.0.1; every wait is bounded.
class RawConnection {
 public:
  explicit RawConnection(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto address = *SocketAddress::parse("127.0.0.1", port);
    EXPECT_EQ(::connect(fd_.get(), address.get(), address.size()), 0) << std::strerror(errno);
  }
  explicit RawConnection(Fd fd) : fd_(std::move(fd)) {}

  // False once the other side is gone.
  bool send(const void* data, std::size_t bytes) {
    const auto* at = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t sent = ::send(fd_.get(), at, bytes, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += sent;
      bytes -= static_cast<std::size_t>(sent);
    }
    return true;
  }
  bool send(const WireHeader& header) {
    const HeaderBytes bytes = encode_header(header);
    return send(bytes.data(), bytes.size());
  }
  bool send(const HelloPayload& hello) {
    WireHeader header = make_header(PacketType::Hello);
    header.length = sizeof hello;
    return send(header) && send(&hello, sizeof hello);
  }
  // Exactly `bytes`, or nothing if the other side closed before.
  std::optional<std::vector<std::byte>> read(std::size_t bytes) {
    std::vector<std::byte> data(bytes);
    std::size_t got = 0;
    while (got < bytes) {
      pollfd waiting{fd_.get(), POLLIN, 0};
      if (::poll(&waiting, 1, 30'000) != 1) return std::nullopt;
      const ssize_t count = ::recv(fd_.get(), data.data() + got, bytes - got, 0);
      if (count <= 0) return std::nullopt;
      got += static_cast<std::size_t>(count);
    }
    return data;
  }
  std::optional<WireHeader> read_header() {
    const auto bytes = read(kHeaderBytes);
    if (!bytes) return std::nullopt;
    const auto header = parse_header_of_any_version(std::span(*bytes).first<kHeaderBytes>());
    return header.is_ok() ? std::optional(*header) : std::nullopt;
  }
  // Whether the other side closes (in 30 s), whatever it sends before.
  bool closed_by_peer() {
    std::vector<std::byte> data(4096);
    for (;;) {
      pollfd waiting{fd_.get(), POLLIN, 0};
      if (::poll(&waiting, 1, 30'000) != 1) return false;
      if (::recv(fd_.get(), data.data(), data.size(), 0) <= 0) return true;
    }
  }
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
};

inline ProcessId id_of(std::uint8_t fill) {
  ProcessId id;
  id.fill(fill);
  return id;
}

inline HelloPayload raw_hello(const Endpoint& to, std::uint16_t stream, std::uint16_t count, JobToken token,
                              ProcessId from = id_of(0xFF)) {
  HelloPayload hello{};
  hello.sender = from;
  hello.receiver = to.id();
  hello.token = token;
  hello.max_unexpected_bytes = 1 << 20;
  hello.stream = stream;
  hello.stream_count = count;
  hello.generation = 1;
  return hello;
}

inline WireHeader control_header(PacketType type, std::uint64_t number) {
  WireHeader header = make_header(type);
  header.sequence = number;
  return header;
}

// A connection that says Hello and reads the Welcome.
inline RawConnection open_stream(const Endpoint& victim, const HelloPayload& hello) {
  RawConnection connection(victim.port());
  EXPECT_TRUE(connection.send(hello));
  const auto header = connection.read_header();
  EXPECT_TRUE(header && header->type == static_cast<std::uint8_t>(PacketType::Welcome))
      << "not welcomed: "
      << (header ? core::to_string(static_cast<core::StatusCode>(header->code)) : "hung up");
  EXPECT_TRUE(connection.read(sizeof(HelloPayload)).has_value());
  return connection;
}

// A control stream and one data stream, welcomed by `victim`, which must allow the token.
struct RawPeer {
  RawPeer(const Endpoint& victim, JobToken token, ProcessId id = id_of(0xFF))
      : control(open_stream(victim, raw_hello(victim, 0, 1, token, id))),
        data(open_stream(victim, raw_hello(victim, 1, 1, token, id))) {}
  // The next packet of `type` on the control stream, whatever comes before; none if the stream ends.
  std::optional<WireHeader> next_control(PacketType type) {
    for (;;) {
      const auto header = control.read_header();
      if (!header || header->type == static_cast<std::uint8_t>(type)) return header;
    }
  }
  RawConnection control;
  RawConnection data;
};

// A Segment header as an honest peer would send it, of the first segment of a chunk of one.
inline WireHeader segment_header(std::uint64_t op, std::uint32_t chunk_bytes, std::uint64_t number = 1) {
  WireHeader header = make_header(PacketType::Segment);
  header.sequence = number;
  header.group = 1;
  header.op = op;
  header.descriptor = 7;
  header.chunk_count = 1;
  header.chunk_bytes = chunk_bytes;
  header.length = segment_length(chunk_bytes, 0);
  return header;
}

}  // namespace geocomm::transport::testing
