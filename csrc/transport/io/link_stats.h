// What the kernel knows about a TCP connection.
#pragma once

#include <cstdint>
#include <string>

namespace geocomm::transport {

struct LinkStats {
  std::uint64_t retransmitted_segments = 0;
  std::uint64_t rtt_us = 0;        // smoothed
  std::uint64_t least_rtt_us = 0;  // of late
  std::string congestion_control;  // "bbr", "cubic", ...
  // See ChannelStats.
  std::uint64_t stalled_by_receiver_us = 0;
  std::uint64_t stalled_by_send_buffer_us = 0;
};
// Zeros where the kernel does not say.
LinkStats read_link_stats(int fd);

}  // namespace geocomm::transport
