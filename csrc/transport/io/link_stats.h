// What the kernel knows about a TCP connection.
#pragma once

#include <cstdint>
#include <string>

namespace geocomm::transport {

// What has happened since the connection was made: what can be summed over connections.
struct TcpCounters {
  std::uint64_t data_bytes = 0;  // sent, those that were sent again included
  std::uint64_t retransmitted_bytes = 0;
  std::uint64_t retransmitted_segments = 0;
  std::uint64_t busy_us = 0;  // it had data that was not acknowledged yet
  // Of that time, it held data back: for the receiver's window, and for room in its own send buffer.
  std::uint64_t stalled_by_receiver_us = 0;
  std::uint64_t stalled_by_send_buffer_us = 0;

  TcpCounters& operator+=(const TcpCounters& other);
};

// How it is now.
struct TcpGauges {
  // What the receiver got in the last round trips. Where the application had less to send than the line
  // takes, it says nothing of the line, and is not counted.
  std::uint64_t delivered_bytes_per_s = 0;
  std::uint64_t pacing_bytes_per_s = 0;
  std::uint64_t window_bytes = 0;  // of congestion control
  std::uint64_t unsent_bytes = 0;  // in the send buffer

  TcpGauges& operator+=(const TcpGauges& other);
};

struct LinkStats {
  TcpCounters counters;
  TcpGauges gauges;
  std::uint64_t rtt_us = 0;        // smoothed
  std::uint64_t least_rtt_us = 0;  // of late
  std::string congestion_control;  // "bbr", "cubic", ...
};
// Zeros where the kernel does not say: those before Linux 5 lack some.
LinkStats read_link_stats(int fd);

}  // namespace geocomm::transport
