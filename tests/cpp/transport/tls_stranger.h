// A TLS peer made by hand with OpenSSL alone, to say inside TLS what an Endpoint never would.
#pragma once

#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "raw_peer.h"
#include "tls_fixture.h"
#include "tls_records.h"
#include "transport/io/connection.h"
#include "transport/io/tls_keys.h"

namespace geocomm::transport::testing {

// A complete ClientHello by the keys of `folder`, with which a stranger makes the other side work.
inline std::string first_flight(const Folder& folder) {
  auto keys = std::move(TlsKeys::load(folder.path())).value();
  std::array<int, 2> fds{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()), 0);
  auto dialer = std::move(keys->secure(Fd(fds[0]), TlsRole::Dialer)).value();
  EXPECT_FALSE(*dialer->handshake());
  std::string hello(4096, '\0');
  const ssize_t count = ::recv(fds[1], hello.data(), hello.size(), 0);
  hello.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  ::close(fds[1]);
  return hello;
}

using ContextPtr = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

// Trusts anybody; without `keys` it has no certificate to show.
inline ContextPtr stranger_context(const Folder* keys) {
  ContextPtr context(SSL_CTX_new(TLS_method()), &SSL_CTX_free);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  if (keys != nullptr) {
    const std::string certificate = keys->file("cert.pem");
    const std::string key = keys->file("key.pem");
    EXPECT_EQ(SSL_CTX_use_certificate_file(context.get(), certificate.c_str(), SSL_FILETYPE_PEM), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM), 1);
  }
  return context;
}

// Dials; every wait is bounded.
class TlsStranger {
 public:
  TlsStranger(std::uint16_t port, const Folder* keys)
      : raw_(port),
        context_(stranger_context(keys)),
        ssl_(SSL_new(context_.get()), &SSL_free),
        records_(*ssl_) {
    std::signal(SIGPIPE, SIG_IGN);
    const timeval patience{30, 0};
    EXPECT_EQ(::setsockopt(raw_.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    SSL_set_fd(ssl_.get(), raw_.fd());
    EXPECT_EQ(SSL_connect(ssl_.get()), 1);
  }

  void say(const HelloPayload& hello) {
    WireHeader header = make_header(PacketType::Hello);
    header.length = sizeof hello;
    const HeaderBytes bytes = encode_header(header);
    EXPECT_GT(SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())), 0);
    EXPECT_GT(SSL_write(ssl_.get(), &hello, sizeof hello), 0);
  }
  struct Answer {
    PacketType type;
    StatusCode code;
    std::string text;
  };
  // Nothing: the other side closed without a word.
  std::optional<Answer> answer() {
    const std::optional<std::string> bytes = read(kHeaderBytes);
    if (!bytes) return std::nullopt;
    HeaderBytes head;
    std::memcpy(head.data(), bytes->data(), head.size());
    const auto header = parse_header_of_any_version(head);
    EXPECT_TRUE(header.is_ok());
    if (!header.is_ok()) return std::nullopt;
    const std::optional<std::string> text = read(header->length);
    EXPECT_TRUE(text.has_value());
    return Answer{static_cast<PacketType>(header->type), static_cast<StatusCode>(header->code),
                  text.value_or("")};
  }
  // What proves a data stream, if this is its control stream.
  std::array<std::uint8_t, 32> proof_of(std::uint16_t stream, std::uint32_t generation) {
    BindingKey key{};
    static constexpr char kLabel[] = "EXPORTER-geocomm-stream-binding";
    EXPECT_EQ(SSL_export_keying_material(ssl_.get(), key.data(), key.size(), kLabel, sizeof kLabel - 1,
                                         nullptr, 0, 0),
              1);
    std::array<unsigned char, 6> text;
    std::memcpy(text.data(), &stream, 2);
    std::memcpy(text.data() + 2, &generation, 4);
    std::array<std::uint8_t, 32> proof{};
    unsigned int bytes = 0;
    EXPECT_NE(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), text.data(), text.size(),
                   proof.data(), &bytes),
              nullptr);
    return proof;
  }
  // Exactly so much; nothing: it did not come.
  std::optional<std::string> read(std::size_t bytes) {
    std::string data(bytes, '\0');
    for (std::size_t got = 0; got < bytes;) {
      const int count = SSL_read(ssl_.get(), data.data() + got, static_cast<int>(bytes - got));
      if (count <= 0) return std::nullopt;
      got += static_cast<std::size_t>(count);
    }
    return data;
  }
  bool write(const std::string& data) {
    return SSL_write(ssl_.get(), data.data(), static_cast<int>(data.size())) == static_cast<int>(data.size());
  }
  SSL& ssl() { return *ssl_; }
  int fd() const { return raw_.fd(); }
  DialerRecords& records() { return records_; }

 private:
  RawConnection raw_;
  ContextPtr context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  DialerRecords records_;
};

}  // namespace geocomm::transport::testing
