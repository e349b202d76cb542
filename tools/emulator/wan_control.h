// The control socket: a Unix stream socket that takes lines and answers each with a line of JSON. Runs in the
// emulator's poll loop; no thread of its own.
//   stats                              report_json()
//   set <src> <dst> <key>=<value>…     the keys of the configuration's `link`; {"ok":true} or {"error":"…"}
#pragma once

#include <poll.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "emulator/wan_fd.h"

namespace geocomm::emulator {

class ControlServer {
 public:
  // `answer` turns a request line into a reply line.
  explicit ControlServer(std::function<std::string(std::string_view)> answer) : answer_(std::move(answer)) {}
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Makes the socket, for its owner alone. InvalidArgument: the path cannot be bound.
  core::Status listen(const std::string& path);
  // The descriptors to wait for, appended to `fds`.
  void watch(std::vector<pollfd>& fds) const;
  // Serves whoever is readable, without ever waiting.
  void serve();

 private:
  struct Client {
    UniqueFd socket;
    std::string request;
    std::string reply;  // what it has not read of it; until it has, nothing more is read of what it asks
  };
  // False: the client is done.
  bool serve_client(Client& client);

  std::function<std::string(std::string_view)> answer_;
  std::string path_;
  UniqueFd listener_;
  std::vector<Client> clients_;
};

}  // namespace geocomm::emulator
