// Sockets as RAII and Results: addresses, listening, dialing, the options of a stream.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/fork.h"
#include "core/status.h"

namespace geocomm::transport {

// Owns a file descriptor, in the process that made it: a forked child has it closed, since what a child holds
// of a connection or a listener outlives the process that it was forked from. The objects in the child close
// nothing.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : Fd(Listed{}, list(fd)) {}
  // Of what `make` returns, a descriptor or -1, with no fork in between. It must not block.
  template <typename Make>
  static Fd made_by(const Make& make) {
    const NoFork no_fork;
    return Fd(Listed{}, list_locked(make()));
  }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), mark_(other.mark_) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      mark_ = other.mark_;
    }
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset();

 private:
  struct Listed {};
  // While one lives, a fork of this process waits.
  struct NoFork {
    NoFork();
    ~NoFork();
  };
  Fd(Listed, int fd) : fd_(fd) {}
  static int list(int fd) {
    const NoFork no_fork;
    return list_locked(fd);
  }
  static int list_locked(int fd);

  int fd_ = -1;
  core::ProcessMark mark_;
};

// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t size);
  // Of a numeric address, without asking a name server.
  static std::optional<SocketAddress> parse(const std::string& host, std::uint16_t port);
  // The far end of a connected socket, or the near one of a bound socket.
  static SocketAddress peer_of(int fd);
  static SocketAddress local_of(int fd);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }
  int family() const { return storage_.ss_family; }
  std::uint16_t port() const;
  // 127.0.0.0/8 (also mapped into IPv6) or ::1.
  bool is_loopback() const;
  bool is_wildcard() const;
  std::string to_string() const;  // "10.0.0.2:4000", "[::1]:4000"
  // What parse() takes, without the port; an IPv4 address that is mapped into IPv6 as the former. Empty:
  // unknown.
  std::string host() const;

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

// The hosts of a list: names and numeric addresses, separated by commas.
std::vector<std::string> hosts_of(const std::string& list);
// Every address of those hosts that needs no resolver.
std::vector<SocketAddress> numeric_addresses(const std::string& list, std::uint16_t port);
// Asks the resolver where one of the hosts is a name; blocks then. Every address of every host, in their
// order, families by turns (RFC 8305). An error if there is none.
core::Result<std::vector<SocketAddress>> resolve(const std::string& list, std::uint16_t port);

// Listens, without blocking. A message of its own for a port that is taken.
core::Result<Fd> listen_on(const SocketAddress& address);
struct StreamTuning {
  std::chrono::milliseconds user_timeout{};  // unacknowledged data for so long ends the connection
  std::uint64_t max_pacing_bytes_per_sec = 0;
};
// TCP_NODELAY, BBR where allowed (not on loopback), TCP_NOTSENT_LOWAT (kNotSentLowatBytes), TCP_USER_TIMEOUT,
// keep-alive, pacing.
// Buffer sizes stay the kernel's (autotuning). What the kernel does not know is left out.
void tune_stream(int fd, const StreamTuning& tuning);
// How many bytes may wait unsent in the kernel (TCP_NOTSENT_LOWAT): a stream takes more of the queue only
// when less than half of that does. What a slow stream holds back, a faster one could have sent, and a small
// operation cannot pass.
inline constexpr int kNotSentLowatBytes = 256 * 1024;
// Changes StreamTuning::user_timeout.
void set_user_timeout(int fd, std::chrono::milliseconds timeout);
// Changes StreamTuning::max_pacing_bytes_per_sec.
void set_max_pacing(int fd, std::uint64_t bytes_per_sec);
// Bytes in the kernel that were not sent even once.
int not_sent_bytes(int fd);

// Of a socket call that moved nothing and may be made again.
inline bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

// Starts to connect, without blocking: writable once it is decided (connect_error()).
core::Result<Fd> start_connect(const SocketAddress& address, const StreamTuning& tuning);
// Network, with the kernel's words for it.
core::Status errno_status(int error);
// 0 once connected, else the errno.
int connect_error(int fd);

// Whether this process may use BBR.
bool bbr_allowed();
// The most that the kernel lets a TCP connection's buffers grow to (tcp_wmem, tcp_rmem); 0: it does not say.
struct BufferLimits {
  std::uint64_t send_bytes = 0;
  std::uint64_t receive_bytes = 0;
};
BufferLimits buffer_limits();

}  // namespace geocomm::transport
