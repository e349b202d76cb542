// What UCX says of itself in words, as far as one has to read it: UCX 1.13 has no other way to tell which
// transports it has found or chosen.
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <vector>

namespace geocomm::transport {

// Names of UCX's transports ("rc_mlx5", "tcp", "posix"), each once: all that the context may use, and those
// of an endpoint's lanes.
std::vector<std::string> transports_of(ucp_context_h context);
std::vector<std::string> transports_of(ucp_ep_h endpoint);

// InfiniBand, RoCE, EFA, Slingshot and the like.
bool is_rdma(const std::string& transport);
// Within one machine.
bool is_local(const std::string& transport);
// "tcp, posix"; "none".
std::string listed(const std::vector<std::string>& transports);

}  // namespace geocomm::transport
