#include "emulator/wan_namespace.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "core/str.h"
#include "emulator/wan_packet.h"
#include "emulator/wan_router.h"

namespace geocomm::emulator {
namespace {

using core::Result;
using core::Status;
using core::StatusCode;

constexpr int kMtu = 1500;
constexpr int kTxQueueLength = 10000;  // the kernel's 500 drops super-packets while the reader is off the CPU
constexpr double kMinBufferBytes = 256.0 * 1024 * 1024, kMaxBufferBytes = 1024.0 * 1024 * 1024;

constexpr char kHowToUserNamespace[] =
    "run as root, or allow unprivileged user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 "
    "(Debian), "
    "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), user.max_user_namespaces=10000; in a container "
    "start it "
    "with --cap-add SYS_ADMIN --cap-add NET_ADMIN --device /dev/net/tun --security-opt seccomp=unconfined";

using Capabilities = std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3>;

__user_cap_header_struct capability_header() {
  return {_LINUX_CAPABILITY_VERSION_3, 0};
}

bool read_capabilities(Capabilities& capabilities) {
  auto header = capability_header();
  return syscall(SYS_capget, &header, capabilities.data()) == 0;
}

Status denied(const std::string& what, const std::string& remedy) {
  const int error = errno;
  return Status(StatusCode::Unsupported, core::str("this machine allows no emulated WAN: ", what,
                                                   " failed: ", std::strerror(error), "; ", remedy))
      .with_errno(error);
}

bool write_file(const std::string& path, const std::string& text) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return fd.valid() && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

ifreq interface_request(const char* name) {
  ifreq request{};
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  return request;
}

void set_address(ifreq& request, std::uint32_t address) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(address);
  std::memcpy(&request.ifr_addr, &in, sizeof(in));
}

Status request_interface(int socket, unsigned long request, ifreq& argument, const char* what) {
  if (ioctl(socket, request, &argument) == 0) return Status::ok();
  return denied(core::str(what, " of ", argument.ifr_name), "the site's network cannot be set up");
}

// Over netlink: the ioctl for this takes privileges in the initial user namespace.
Status set_queue_length(const char* interface, std::uint32_t packets) {
  struct {
    nlmsghdr header;
    ifinfomsg link;
    rtattr attribute;
    std::uint32_t packets;
  } request{};
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = RTM_NEWLINK;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
  request.link.ifi_index = static_cast<int>(if_nametoindex(interface));
  request.attribute.rta_len = RTA_LENGTH(sizeof(packets));
  request.attribute.rta_type = IFLA_TXQLEN;
  request.packets = packets;
  struct {
    nlmsghdr header;
    nlmsgerr outcome;
  } answer{};
  const UniqueFd netlink(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!netlink.valid() || send(netlink.get(), &request, sizeof(request), 0) < 0 ||
      recv(netlink.get(), &answer, sizeof(answer), 0) < static_cast<ssize_t>(sizeof(answer))) {
    return denied("talking to rtnetlink", "the site's network cannot be set up");
  }
  errno = -answer.outcome.error;
  if (errno == 0) return Status::ok();
  return denied(core::str("setting the queue length of ", interface), "the site's network cannot be set up");
}

Result<UniqueFd> open_tun() {
  UniqueFd tun(open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!tun.valid()) {
    if (errno == EACCES || errno == EPERM) {
      return denied(core::str("opening /dev/net/tun for reading and writing as uid ", geteuid()),
                    "as root: chmod 0666 /dev/net/tun (the usual mode), or run as root");
    }
    return denied("opening /dev/net/tun", "as root: modprobe tun; in a container: --device /dev/net/tun");
  }
  ifreq request = interface_request(kTunName);
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(tun.get(), TUNSETIFF, &request) != 0) return denied("making the TUN device", kHowToUserNamespace);
  int header_bytes = kVnetHeaderBytes;
  if (ioctl(tun.get(), TUNSETVNETHDRSZ, &header_bytes) != 0 ||
      ioctl(tun.get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0) {
    return denied("turning on TCP segmentation offload of the TUN device",
                  "a Linux kernel of 4.0 or later has it");
  }
  return tun;
}

Status configure_interfaces(std::size_t site) {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return denied("opening a socket", "the site's network cannot be set up");
  ifreq lo = interface_request("lo");
  lo.ifr_flags = IFF_UP | IFF_RUNNING;
  GEOCOMM_RETURN_IF_ERROR(request_interface(socket.get(), SIOCSIFFLAGS, lo, "bringing up"));

  GEOCOMM_RETURN_IF_ERROR(set_queue_length(kTunName, kTxQueueLength));
  ifreq tun = interface_request(kTunName);
  tun.ifr_mtu = kMtu;
  GEOCOMM_RETURN_IF_ERROR(request_interface(socket.get(), SIOCSIFMTU, tun, "setting the MTU"));
  set_address(tun, site_address(site));
  GEOCOMM_RETURN_IF_ERROR(request_interface(socket.get(), SIOCSIFADDR, tun, "setting the address"));
  set_address(tun, 0xffff0000U);  // makes the route to all other sites
  GEOCOMM_RETURN_IF_ERROR(request_interface(socket.get(), SIOCSIFNETMASK, tun, "setting the netmask"));
  tun.ifr_flags = IFF_UP | IFF_RUNNING;
  return request_interface(socket.get(), SIOCSIFFLAGS, tun, "bringing up");
}

void tune_kernel(double bdp_bytes, std::string& warnings) {
  // Holds for the TUN device, which is made later: its IPv6 router solicitations would only be dropped. ::1
  // stays.
  write_file("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
  write_file("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
  // Autotuning counts an skb's overhead, so that one flow needs about twice its data, and slow start twice
  // that.
  const double buffer = std::clamp(4 * bdp_bytes, kMinBufferBytes, kMaxBufferBytes);
  const std::string bytes = core::str(static_cast<long>(std::llround(buffer)));
  for (const char* name : {"/proc/sys/net/core/rmem_max", "/proc/sys/net/core/wmem_max"})
    write_file(name, bytes);
  for (const char* name : {"tcp_rmem 4096 131072 ", "tcp_wmem 4096 65536 "}) {
    const std::string setting = name;
    const std::string path = "/proc/sys/net/ipv4/" + setting.substr(0, 8);
    if (!write_file(path, setting.substr(9) + bytes)) {
      warnings += core::str("cannot write ", path, " (", std::strerror(errno),
                            "): one TCP flow may not fill a long fast link\n");
    }
  }
}

// Lets programs that list /sys/class/net see the site's interfaces, not the host's. A convenience: a
// container may forbid it.
void mount_own_sysfs() {
  if (unshare(CLONE_NEWNS) != 0) return;
  if (mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return;
  // The new mount would hide the cgroup tree below the old one.
  const UniqueFd cgroup(static_cast<int>(syscall(SYS_open_tree, AT_FDCWD, "/sys/fs/cgroup",
                                                 1 /* OPEN_TREE_CLONE */ | AT_RECURSIVE | O_CLOEXEC)));
  if (mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0 || !cgroup.valid())
    return;
  syscall(SYS_move_mount, cgroup.get(), "", AT_FDCWD, "/sys/fs/cgroup", 4 /* MOVE_MOUNT_F_EMPTY_PATH */);
}

}  // namespace

Status acquire_privileges() {
  Capabilities capabilities{};
  const std::uint32_t needed = 1U << CAP_SYS_ADMIN | 1U << CAP_NET_ADMIN;
  if (read_capabilities(capabilities) && (capabilities[0].effective & needed) == needed) return Status::ok();

  const std::string uid = core::str(geteuid()), gid = core::str(getegid());
  if (unshare(CLONE_NEWUSER) != 0) {
    return denied(
        core::str("uid ", uid, " lacks CAP_SYS_ADMIN and CAP_NET_ADMIN, and making a user namespace"),
        kHowToUserNamespace);
  }
  if (!write_file("/proc/self/setgroups", "deny") ||
      !write_file("/proc/self/uid_map", uid + " " + uid + " 1") ||
      !write_file("/proc/self/gid_map", gid + " " + gid + " 1")) {
    return denied("writing the user namespace's id maps", kHowToUserNamespace);
  }
  return Status::ok();
}

Result<UniqueFd> enter_site_network(std::size_t site, double bdp_bytes, std::string& warnings) {
  if (unshare(CLONE_NEWNET) != 0) return denied("making a network namespace", kHowToUserNamespace);
  mount_own_sysfs();
  tune_kernel(bdp_bytes, warnings);
  auto tun = open_tun();
  if (!tun) return tun;
  GEOCOMM_RETURN_IF_ERROR(configure_interfaces(site));
  return tun;
}

void keep_network_capabilities() {
  Capabilities capabilities{};
  if (geteuid() == 0 || !read_capabilities(capabilities)) return;
  const std::uint32_t kept = capabilities[0].permitted & (1U << CAP_NET_ADMIN | 1U << CAP_NET_RAW);
  capabilities[0].inheritable |= kept;
  auto header = capability_header();
  if (syscall(SYS_capset, &header, capabilities.data()) != 0) return;
  for (const int capability : {CAP_NET_ADMIN, CAP_NET_RAW}) {
    if ((kept & 1U << capability) != 0) prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0);
  }
}

}  // namespace geocomm::emulator
