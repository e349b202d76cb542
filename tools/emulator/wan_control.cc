#include "emulator/wan_control.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/str.h"

namespace geocomm::emulator {
namespace {

constexpr std::size_t kMaxRequestBytes = 4096;
constexpr std::size_t kMaxClients = 32;

}  // namespace

ControlServer::~ControlServer() {
  if (listener_.valid()) unlink(path_.c_str());
}

core::Status ControlServer::listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return {core::StatusCode::InvalidArgument, core::str("control path is too long for a socket: ", path)};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const mode_t old_mask = umask(0177);
  const bool listening =
      listener.valid() &&
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      ::listen(listener.get(), kMaxClients) == 0;
  const int error = errno;
  umask(old_mask);
  if (!listening) {
    return core::Status(core::StatusCode::InvalidArgument,
                        core::str("cannot make the control socket ", path, ": ", std::strerror(error)))
        .with_errno(error);
  }
  listener_ = std::move(listener);
  path_ = path;
  return core::Status::ok();
}

void ControlServer::watch(std::vector<pollfd>& fds) const {
  if (listener_.valid()) fds.push_back({listener_.get(), POLLIN, 0});
  for (const Client& client : clients_) {
    const bool reads = client.reply.empty();
    fds.push_back({client.socket.get(), static_cast<short>(reads ? POLLIN : POLLOUT), 0});
  }
}

void ControlServer::serve() {
  std::erase_if(clients_, [this](Client& client) { return !serve_client(client); });
  if (!listener_.valid()) return;
  for (;;) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    if (clients_.size() < kMaxClients) clients_.push_back({std::move(socket), {}, {}});
  }
}

bool ControlServer::serve_client(Client& client) {
  std::array<char, kMaxRequestBytes> buffer;
  for (;;) {
    while (!client.reply.empty()) {
      const ssize_t sent =
          send(client.socket.get(), client.reply.data(), client.reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      client.reply.erase(0, static_cast<std::size_t>(sent));
    }
    if (const std::size_t end = client.request.find('\n'); end != std::string::npos) {
      client.reply = answer_(std::string_view(client.request).substr(0, end)) + '\n';
      client.request.erase(0, end + 1);
      continue;
    }
    if (client.request.size() > kMaxRequestBytes) return false;
    const ssize_t got = recv(client.socket.get(), buffer.data(), buffer.size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    client.request.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace geocomm::emulator
