// What a Mux has moved.
#pragma once

#include <cstdint>

namespace geocomm::transport {

struct MuxStats {
  std::uint64_t payload_sent = 0;
  std::uint64_t payload_received = 0;
  std::uint64_t resent_segments = 0;   // ours (up to 256 KiB), since a connection was lost or slow
  std::uint64_t acks = 0;              // packets received
  std::uint64_t early_bytes_held = 0;  // received, of operations that nobody has posted here
  std::uint64_t early_bytes_sent = 0;  // of the peer's credit for such, what is taken
};

}  // namespace geocomm::transport
