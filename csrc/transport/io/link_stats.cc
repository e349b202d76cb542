#include "transport/io/link_stats.h"

#include <linux/tcp.h>  // its tcp_info has fields that the C library's lacks
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

namespace geocomm::transport {

namespace {

constexpr std::uint64_t kNotPaced = ~std::uint64_t{0};
constexpr std::uint32_t kNoRtt = ~std::uint32_t{0};  // nothing was acknowledged yet

}  // namespace

TcpCounters& TcpCounters::operator+=(const TcpCounters& other) {
  data_bytes += other.data_bytes;
  retransmitted_bytes += other.retransmitted_bytes;
  retransmitted_segments += other.retransmitted_segments;
  busy_us += other.busy_us;
  stalled_by_receiver_us += other.stalled_by_receiver_us;
  stalled_by_send_buffer_us += other.stalled_by_send_buffer_us;
  return *this;
}

TcpGauges& TcpGauges::operator+=(const TcpGauges& other) {
  delivered_bytes_per_s += other.delivered_bytes_per_s;
  pacing_bytes_per_s += other.pacing_bytes_per_s;
  window_bytes += other.window_bytes;
  unsent_bytes += other.unsent_bytes;
  return *this;
}

LinkStats read_link_stats(int fd) {
  LinkStats stats;
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
    stats.counters = {
        .data_bytes = info.tcpi_bytes_sent,
        .retransmitted_bytes = info.tcpi_bytes_retrans,
        .retransmitted_segments = info.tcpi_total_retrans,
        .busy_us = info.tcpi_busy_time,
        .stalled_by_receiver_us = info.tcpi_rwnd_limited,
        .stalled_by_send_buffer_us = info.tcpi_sndbuf_limited,
    };
    stats.gauges = {
        .delivered_bytes_per_s = info.tcpi_delivery_rate_app_limited != 0 ? 0 : info.tcpi_delivery_rate,
        .pacing_bytes_per_s = info.tcpi_pacing_rate == kNotPaced ? 0 : info.tcpi_pacing_rate,
        .window_bytes = std::uint64_t{info.tcpi_snd_cwnd} * info.tcpi_snd_mss,
        .unsent_bytes = info.tcpi_notsent_bytes,
    };
    stats.rtt_us = info.tcpi_rtt;
    stats.least_rtt_us = info.tcpi_min_rtt == kNoRtt ? 0 : info.tcpi_min_rtt;
  }
  char name[17] = {};
  size = sizeof name - 1;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0) {
    stats.congestion_control.assign(name, strnlen(name, sizeof name));
  }
  return stats;
}

}  // namespace geocomm::transport
