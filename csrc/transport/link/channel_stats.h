// What a channel has moved, and what its connections went through.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "transport/io/link_stats.h"
#include "transport/link/clock_offset.h"
#include "transport/mux/mux_stats.h"

namespace geocomm::transport {

struct ChannelStats : MuxStats {
  TcpCounters tcp;               // all streams, those of closed connections too
  TcpGauges tcp_now;             // all streams
  std::uint64_t bytes_sent = 0;  // wire: headers and payload, not TCP/IP
  std::uint64_t bytes_received = 0;
  std::uint64_t resumes = 0;       // connections that took the place of others
  std::uint64_t outages = 0;       // times that connections were lost and all are there again
  std::uint64_t outage_us = 0;     // from the last contact to the last connection, summed over these
  std::uint64_t rtt_us = 0;        // last heartbeat; TCP's estimate until then
  std::uint32_t streams = 0;       // data streams that are connected now
  std::uint64_t least_rtt_us = 0;  // of all heartbeats; 0: there was none
  std::string congestion_control;  // "bbr", "cubic", ...
  std::string cipher;              // of TLS 1.3; empty: plaintext
  std::string transport;           // of the data: "tcp", "rdma (rc_mlx5)", which cipher does not cover
  // Of the peer's steady clock; nothing: it has not answered a heartbeat, or tells no time.
  std::optional<ClockOffset::Estimate> clock;
  // Since the last byte came, of heartbeats too; nothing: none ever did.
  std::optional<std::uint64_t> silent_us;
};

}  // namespace geocomm::transport
