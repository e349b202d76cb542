// Everything that needs privileges: a user namespace where the caller is not root, and a network namespace
// with a TUN device for a site. Namespaces made here have no name and no mount: they end with the processes
// inside.
#pragma once

#include <cstddef>
#include <string>

#include "core/status.h"
#include "emulator/wan_fd.h"

namespace geocomm::emulator {

inline constexpr char kTunName[] = "wan0";

// Gives the calling process CAP_SYS_ADMIN and CAP_NET_ADMIN, in a new user namespace (its uid and gid
// unchanged) unless it has them. Precondition: one thread. Unsupported: says what the machine forbids and how
// to allow it.
core::Status acquire_privileges();

// Moves the calling process into a new network namespace with `lo` up and kTunName as 10.91.<site>.1/16, with
// buffers for `bdp_bytes` in flight, and returns the TUN descriptor (non-blocking, IFF_VNET_HDR, TSO4).
// Precondition: one thread. `warnings` gets one line for each setting that was refused but that the site can
// do without.
core::Result<UniqueFd> enter_site_network(std::size_t site, double bdp_bytes, std::string& warnings);

// For a process about to exec a site's command: keeps CAP_NET_ADMIN and CAP_NET_RAW across exec (for
// congestion control and ping; they hold in the site's own network only). Without effect for root.
void keep_network_capabilities();

}  // namespace geocomm::emulator
