#include "transport/io/socket.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <string_view>
#include <system_error>

#include "core/str.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

// Which descriptors Fds of this process own. Leaked: some are closed at exit.
constinit std::vector<bool>* g_open = nullptr;
constinit std::mutex g_open_mutex;  // guards g_open; held over a fork

void close_all_in_child() {
  for (std::size_t fd = 0; g_open != nullptr && fd < g_open->size(); ++fd) {
    if ((*g_open)[fd]) ::close(static_cast<int>(fd));
    (*g_open)[fd] = false;
  }
  g_open_mutex.unlock();
}

[[maybe_unused]] const int g_registered =
    ::pthread_atfork([] { g_open_mutex.lock(); }, [] { g_open_mutex.unlock(); }, close_all_in_child);

constexpr int kBacklog = 1024;
constexpr int kKeepAliveSeconds = 15;

void set_option(int fd, int level, int name, int value) {
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

bool set_congestion(int fd, std::string_view name) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0;
}

// Loopback loses nothing, and the timers of BBR's pacing halve its rate. A connection that ever had BBR keeps
// them, so this comes before it is made.
void set_congestion_of_loopback(int fd) {
  if (!set_congestion(fd, "cubic")) (void)set_congestion(fd, "reno");
}

void tune(int fd, const StreamTuning& tuning, bool loopback) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (!loopback) (void)set_congestion(fd, "bbr");
  set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kNotSentLowatBytes);
  set_user_timeout(fd, tuning.user_timeout);
  // An idle stream is found dead, and firewalls and NAT keep it in mind.
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveSeconds);
  if (tuning.max_pacing_bytes_per_sec > 0) set_max_pacing(fd, tuning.max_pacing_bytes_per_sec);
}

Fd stream_socket(int family) {
  return Fd::made_by([&] { return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

Status network_error(const std::string& what, int error) {
  return Status(StatusCode::Network, core::str(what, ": ", std::generic_category().message(error)))
      .with_errno(error);
}

}  // namespace

Status errno_status(int error) {
  return Status(StatusCode::Network, std::generic_category().message(error)).with_errno(error);
}

Fd::NoFork::NoFork() {
  g_open_mutex.lock();
}

Fd::NoFork::~NoFork() {
  g_open_mutex.unlock();
}

int Fd::list_locked(int fd) {
  if (fd < 0) return fd;
  if (g_open == nullptr) g_open = new std::vector<bool>();
  const auto index = static_cast<std::size_t>(fd);
  if (g_open->size() <= index) g_open->resize(index + 1);
  (*g_open)[index] = true;
  return fd;
}

void Fd::reset() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0 || !mark_.is_here()) return;
  const NoFork no_fork;  // a child would close whatever has the number by then
  (*g_open)[static_cast<std::size_t>(fd)] = false;
  ::close(fd);
}

SocketAddress::SocketAddress(const sockaddr* address, socklen_t size)
    : size_(std::min<socklen_t>(size, sizeof storage_)) {
  std::memcpy(&storage_, address, size_);
}

std::optional<SocketAddress> SocketAddress::parse(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return std::nullopt;
  const SocketAddress address(found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

SocketAddress SocketAddress::peer_of(int fd) {
  SocketAddress address;
  address.size_ = sizeof address.storage_;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_) != 0) return {};
  return address;
}

SocketAddress SocketAddress::local_of(int fd) {
  SocketAddress address;
  address.size_ = sizeof address.storage_;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_) != 0) return {};
  return address;
}

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(storage_).sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port);
  return 0;
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(storage_).sin_addr.s_addr) >> 24 == 127;
  }
  if (family() == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&address)) return address.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&address);
  }
  return false;
}

bool SocketAddress::is_wildcard() const {
  if (family() == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(storage_).sin_addr.s_addr == INADDR_ANY;
  return family() == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr);
}

std::string SocketAddress::to_string() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(storage_).sin_addr, text, sizeof text);
    return core::str(text, ":", port());
  }
  if (family() == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr, text, sizeof text);
    return core::str("[", text, "]:", port());
  }
  return "unknown address";
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = "";
  if (family() == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&address)) {
      inet_ntop(AF_INET, &address.s6_addr[12], text, sizeof text);
      return text;
    }
  }
  // With the interface, where an address means nothing without.
  if (getnameinfo(get(), size_, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text;
}

std::vector<std::string> hosts_of(const std::string& list) {
  std::vector<std::string> hosts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) hosts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return hosts;
}

std::vector<SocketAddress> numeric_addresses(const std::string& list, std::uint16_t port) {
  std::vector<SocketAddress> addresses;
  for (const std::string& host : hosts_of(list)) {
    if (const auto numeric = SocketAddress::parse(host, port)) addresses.push_back(*numeric);
  }
  return addresses;
}

namespace {

Result<std::vector<SocketAddress>> resolve_host(const std::string& host, std::uint16_t port) {
  if (const auto numeric = SocketAddress::parse(host, port)) return std::vector{*numeric};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0) {
    return Status(StatusCode::Network, core::str("cannot resolve '", host, "': ", gai_strerror(error),
                                                 ". Check the name, or give a numeric address"));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    addresses.emplace_back(entry->ai_addr, entry->ai_addrlen);
  }
  freeaddrinfo(found);
  return addresses;
}

// One of each family by turns, beginning with that of the first.
std::vector<SocketAddress> alternated(const std::vector<SocketAddress>& addresses) {
  std::vector<SocketAddress> first;
  std::vector<SocketAddress> others;
  for (const SocketAddress& address : addresses) {
    (address.family() == addresses.front().family() ? first : others).push_back(address);
  }
  std::vector<SocketAddress> mixed;
  for (std::size_t i = 0; i < std::max(first.size(), others.size()); ++i) {
    if (i < first.size()) mixed.push_back(first[i]);
    if (i < others.size()) mixed.push_back(others[i]);
  }
  return mixed;
}

}  // namespace

Result<std::vector<SocketAddress>> resolve(const std::string& list, std::uint16_t port) {
  std::vector<SocketAddress> addresses;
  Status failure(StatusCode::Network, core::str("no address in '", list, "'"));
  for (const std::string& host : hosts_of(list)) {
    Result<std::vector<SocketAddress>> found = resolve_host(host, port);
    if (!found.is_ok()) {
      failure = found.status();
      continue;
    }
    addresses.insert(addresses.end(), found->begin(), found->end());
  }
  if (addresses.empty()) return failure;
  return alternated(addresses);
}

Result<Fd> listen_on(const SocketAddress& address) {
  Fd fd = stream_socket(address.family());
  if (!fd.valid()) return network_error("cannot make a socket", errno);
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  set_congestion_of_loopback(fd.get());  // what it accepts begins with it, and is tuned then
  if (address.family() == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(fd.get(), address.get(), address.size()) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    const std::string hint =
        error == EADDRINUSE
            ? ". Another process listens there: end it (`ss -ltnp` names it) or set another GEOCOMM_PORT"
        : error == EADDRNOTAVAIL ? ". No interface of this machine has the address: check GEOCOMM_ADDRESS"
        : error == EACCES        ? ". Ports below 1024 need privileges: set another GEOCOMM_PORT"
                                 : "";
    return Status(StatusCode::Network, core::str("cannot listen on ", address.to_string(), ": ",
                                                 std::generic_category().message(error), hint))
        .with_errno(error);
  }
  return fd;
}

Result<Fd> start_connect(const SocketAddress& address, const StreamTuning& tuning) {
  Fd fd = stream_socket(address.family());
  if (!fd.valid()) return network_error("cannot make a socket", errno);
  if (address.is_loopback()) set_congestion_of_loopback(fd.get());
  tune(fd.get(), tuning, address.is_loopback());
  if (::connect(fd.get(), address.get(), address.size()) != 0 && errno != EINPROGRESS) {
    return network_error(core::str("cannot connect to ", address.to_string()), errno);
  }
  return fd;
}

int connect_error(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

void tune_stream(int fd, const StreamTuning& tuning) {
  tune(fd, tuning, SocketAddress::peer_of(fd).is_loopback());
}

void set_user_timeout(int fd, std::chrono::milliseconds timeout) {
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
             static_cast<int>(std::min<std::int64_t>(timeout.count(), 1'000'000'000)));
}

void set_max_pacing(int fd, std::uint64_t bytes_per_sec) {
  (void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_sec, sizeof bytes_per_sec);
}

int not_sent_bytes(int fd) {
  int bytes = 0;
  return ::ioctl(fd, SIOCOUTQNSD, &bytes) == 0 ? bytes : 0;
}

bool bbr_allowed() {
  const Fd fd = Fd::made_by([] { return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  return fd.valid() && set_congestion(fd.get(), "bbr");
}

BufferLimits buffer_limits() {
  // "4096 131072 6291456": least, first, most.
  const auto most = [](const char* path) {
    std::ifstream file(path);
    std::uint64_t least = 0;
    std::uint64_t first = 0;
    std::uint64_t value = 0;
    return file >> least >> first >> value ? value : 0;
  };
  return {most("/proc/sys/net/ipv4/tcp_wmem"), most("/proc/sys/net/ipv4/tcp_rmem")};
}

}  // namespace geocomm::transport
