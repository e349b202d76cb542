// What a channel has moved, and what its connections went through.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace geocomm::transport {

struct ChannelStats {
  std::uint64_t bytes_sent = 0;  // wire: headers and payload, not TCP/IP
  std::uint64_t bytes_received = 0;
  std::uint64_t payload_sent = 0;
  std::uint64_t payload_received = 0;
  std::uint64_t retransmitted_segments = 0;  // TCP's count, all streams
  std::uint64_t resumes = 0;                 // connections that took the place of others
  std::uint64_t outages = 0;                 // times that connections were lost and all are there again
  std::uint64_t outage_us = 0;         // from the last contact to the last connection, summed over these
  std::uint64_t resent_segments = 0;   // ours (up to 256 KiB), since a connection was lost or slow
  std::uint64_t acks = 0;              // packets received
  std::uint64_t early_bytes_held = 0;  // received now, of operations that nobody has posted here
  std::uint64_t early_bytes_sent = 0;  // of the peer's credit for such, what is taken now
  std::uint64_t rtt_us = 0;            // last heartbeat; TCP's estimate until then
  std::uint32_t streams = 0;           // data streams that are connected now
  std::string congestion_control;      // "bbr", "cubic", ...
  // Time in which TCP had data and held it back, all streams together: for the receiver's window, and for
  // room in its own send buffer.
  std::uint64_t stalled_by_receiver_us = 0;
  std::uint64_t stalled_by_send_buffer_us = 0;
  std::string cipher;     // of TLS 1.3; empty: plaintext
  std::string transport;  // of the data: "tcp", "rdma (rc_mlx5)", which cipher does not cover
  // Since the last byte came, of heartbeats too; nothing: none ever did.
  std::optional<std::uint64_t> silent_us;
};

}  // namespace geocomm::transport
