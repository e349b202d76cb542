#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "link_bench/bench_process.h"

namespace geocomm::link_bench {

namespace {

constexpr std::size_t kWriteBytes = 256 * 1024;
// As much memory as a channel goes through in this measurement.
constexpr std::size_t kMemoryBytes = std::size_t{64} << 20;

class Pipe {
 public:
  explicit Pipe(int fd) : fd_(fd) {}
  virtual ~Pipe() { (void)::close(fd_); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  // How many bytes were moved; 0 or less: the end.
  virtual ssize_t write(const char* data, std::size_t bytes) {
    return ::send(fd_, data, bytes, MSG_NOSIGNAL);
  }
  virtual ssize_t read(char* data, std::size_t bytes) { return ::recv(fd_, data, bytes, 0); }
  // Wakes whoever waits in one of these.
  void end() { (void)::shutdown(fd_, SHUT_RDWR); }

 private:
  const int fd_;
};

class TlsPipe final : public Pipe {
 public:
  TlsPipe(int fd, const std::string& keys, bool accepts)
      : Pipe(fd), context_(SSL_CTX_new(TLS_method()), &SSL_CTX_free) {
    SSL_CTX_set_min_proto_version(context_.get(), TLS1_3_VERSION);
    if (SSL_CTX_use_certificate_file(context_.get(), (keys + "/cert.pem").c_str(), SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_use_PrivateKey_file(context_.get(), (keys + "/key.pem").c_str(), SSL_FILETYPE_PEM) != 1) {
      stop("cannot use the keys in " + keys);
    }
    ssl_ = {SSL_new(context_.get()), &SSL_free};
    if (!ssl_ || SSL_set_fd(ssl_.get(), fd) != 1) stop("no TLS session");
    if ((accepts ? SSL_accept(ssl_.get()) : SSL_connect(ssl_.get())) != 1) stop("no TLS handshake");
  }
  ssize_t write(const char* data, std::size_t bytes) override {
    return SSL_write(ssl_.get(), data, static_cast<int>(bytes));
  }
  ssize_t read(char* data, std::size_t bytes) override {
    return SSL_read(ssl_.get(), data, static_cast<int>(bytes));
  }

 private:
  std::shared_ptr<SSL_CTX> context_;
  std::shared_ptr<SSL> ssl_;
};

int checked(int result, const char* what) {
  if (result < 0) stop(what);
  return result;
}

// The child listens, the parent connects.
int connection(const Settings& settings, bool parent, const Partner& partner) {
  int fd = checked(::socket(AF_INET, SOCK_STREAM, 0), "no socket");
  const auto choose = [fd](const std::string& name) {
    return ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size()));
  };
  if (!settings.congestion.empty()) {
    checked(choose(settings.congestion), "the kernel does not allow this congestion control");
  } else if (choose("cubic") != 0) {
    (void)choose("reno");  // as channels over loopback do
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (parent) {
    partner.hear(&address.sin_port, sizeof address.sin_port);
    checked(::connect(fd, raw, size), "cannot connect");
  } else {
    checked(::bind(fd, raw, size), "cannot bind");
    checked(::listen(fd, 1), "cannot listen");
    checked(::getsockname(fd, raw, &size), "no address");
    partner.tell(&address.sin_port, sizeof address.sin_port);
    const int listener = std::exchange(fd, checked(::accept(fd, nullptr, nullptr), "cannot accept"));
    (void)::close(listener);
  }
  const int on = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

class BareEnd final : public End {
 public:
  BareEnd(const Settings& settings, bool parent, const Partner& partner) {
    for (const bool forward : {true, false}) {
      if (!forward && !settings.both_ways) continue;
      const int fd = connection(settings, parent, partner);
      auto pipe = settings.what == "tls"
                      ? std::make_unique<TlsPipe>(fd, parent ? settings.keys_a : settings.keys_b, !parent)
                      : std::make_unique<Pipe>(fd);
      (forward == parent ? out_ : in_) = std::move(pipe);
    }
  }
  ~BareEnd() override {
    for (Pipe* pipe : {out_.get(), in_.get()}) {
      if (pipe != nullptr) pipe->end();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void start(const Window& window) override {
    if (out_) threads_.push_back(bench_thread([this] { send(); }));
    if (!in_) return;
    meter_ = std::make_unique<Meter>(window);
    threads_.push_back(bench_thread([this] { receive(); }));
  }

  Moved received() override { return meter_ ? meter_->moved() : Moved{}; }

 private:
  void send() {
    const std::vector<char> memory(kMemoryBytes, 'x');
    for (std::size_t at = 0;; at = (at + kWriteBytes) % kMemoryBytes) {
      for (std::size_t sent = 0; sent < kWriteBytes;) {
        const ssize_t more = out_->write(memory.data() + at + sent, kWriteBytes - sent);
        if (more <= 0) return;
        sent += static_cast<std::size_t>(more);
      }
    }
  }
  void receive() {
    std::vector<char> memory(kMemoryBytes);
    for (std::size_t at = 0;;) {
      const ssize_t more = in_->read(memory.data() + at, std::min(kWriteBytes, kMemoryBytes - at));
      if (more <= 0) return;
      (void)meter_->count(static_cast<std::size_t>(more));  // goes on, so that the sender does not stop
      at = (at + static_cast<std::size_t>(more)) % kMemoryBytes;
    }
  }

  std::unique_ptr<Pipe> out_;
  std::unique_ptr<Pipe> in_;
  std::unique_ptr<Meter> meter_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<End> make_bare_end(const Settings& settings, bool parent, const Partner& partner) {
  return std::make_unique<BareEnd>(settings, parent, partner);
}

}  // namespace geocomm::link_bench
