// A stranger that answers where a peer should: it listens, reads what a dialer says first, and gives an
// answer that proves nothing.
#pragma once

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "raw_peer.h"
#include "tls_stranger.h"
#include "transport/io/socket.h"
#include "transport/wire/wire.h"

namespace geocomm::transport::testing {

enum class Forgery : std::uint8_t {
  Alert,               // a TLS alert: your certificate is of an unknown CA
  LetterG,             // as geocomm's packets begin
  ForeignCertificate,  // TLS with a certificate of another CA
  NotYet,              // a Refuse in plaintext: another process
  WrongProcess,        // the same with another code
};

inline const char* name_of(Forgery forgery) {
  static constexpr std::array kNames = {"Alert", "LetterG", "ForeignCertificate", "NotYet", "WrongProcess"};
  return kNames[static_cast<std::size_t>(forgery)];
}

class Impostor {
 public:
  explicit Impostor(Forgery forgery) : forgery_(forgery) {
    stranger_.write_keys(keys_, "geocomm://job/a");
    auto listener = listen_on(*SocketAddress::parse("127.0.0.1", 0));
    EXPECT_TRUE(listener.is_ok()) << listener.status().to_string();
    listener_ = std::move(listener).value();
    thread_ = std::thread([this] { run(); });
  }
  ~Impostor() {
    stop_ = true;
    thread_.join();
  }

  std::uint16_t port() const { return SocketAddress::local_of(listener_.get()).port(); }
  // Waits until so many were given.
  bool answered(int count) const {
    for (const Deadline end = patience(); answers_ < count && !end.expired();) {
      std::this_thread::sleep_for(1ms);
    }
    return answers_ >= count;
  }

 private:
  void run() {
    const ContextPtr context = stranger_context(&keys_);
    while (!stop_) {
      pollfd waiting{listener_.get(), POLLIN, 0};
      if (::poll(&waiting, 1, 20) != 1) continue;
      Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd.valid()) continue;
      const timeval bound{5, 0};
      (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
      answer(std::move(fd), *context);
      ++answers_;
    }
  }
  void answer(Fd fd, SSL_CTX& context) const {
    if (forgery_ == Forgery::ForeignCertificate) {
      const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(&context), &SSL_free);
      SSL_set_fd(ssl.get(), fd.get());
      (void)SSL_accept(ssl.get());
      return;
    }
    std::array<char, 4096> said;
    (void)::recv(fd.get(), said.data(), said.size(), 0);
    RawConnection raw(std::move(fd));
    if (forgery_ == Forgery::Alert) {
      (void)raw.send("\x15\x03\x03\x00\x02\x02\x30", 7);
    } else if (forgery_ == Forgery::LetterG) {
      (void)raw.send("G", 1);
    } else {
      WireHeader header = make_header(PacketType::Refuse);
      const bool not_yet = forgery_ == Forgery::NotYet;
      header.code = static_cast<std::uint16_t>(not_yet ? StatusCode::Timeout : StatusCode::Network);
      header.length = 2;
      (void)(raw.send(header) && raw.send("no", 2));
    }
    ::shutdown(raw.fd(), SHUT_WR);
    (void)raw.closed_by_peer();
  }

  const Forgery forgery_;
  Authority stranger_;
  Folder keys_;
  Fd listener_;
  std::atomic<bool> stop_{false};
  std::atomic<int> answers_{0};
  std::thread thread_;
};

}  // namespace geocomm::transport::testing
