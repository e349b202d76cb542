#include "transport/io/link_stats.h"

#include <linux/tcp.h>  // its tcp_info has fields that the C library's lacks
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

namespace geocomm::transport {

LinkStats read_link_stats(int fd) {
  LinkStats stats;
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
    stats.retransmitted_segments = info.tcpi_total_retrans;
    stats.rtt_us = info.tcpi_rtt;
    stats.least_rtt_us = info.tcpi_min_rtt;
    stats.stalled_by_receiver_us = info.tcpi_rwnd_limited;
    stats.stalled_by_send_buffer_us = info.tcpi_sndbuf_limited;
  }
  char name[17] = {};
  size = sizeof name - 1;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0) {
    stats.congestion_control.assign(name, strnlen(name, sizeof name));
  }
  return stats;
}

}  // namespace geocomm::transport
