// What a link is told by its owners.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/wire/ids.h"

namespace geocomm::transport {

struct LinkOptions {
  int streams = 0;  // data streams per channel, at most 64; 0: as many as the link needs, at least 2 with
                    // BBR, 16 with another congestion control. The side that dials decides
  std::chrono::milliseconds link_deadline =
      std::chrono::seconds(60);  // silence after which a peer counts as lost; also to connect. Until then
                                 // lost connections are made again
  // A peer whose machine refuses connections for so long counts as lost, or at link_deadline if that is less.
  // One that was never connected: four times as long.
  std::chrono::milliseconds believed_refusal = std::chrono::seconds(5);
  std::uint64_t max_pacing_bps = 0;  // per channel, bits per second; 0: no cap
  std::size_t max_unexpected_bytes = std::size_t{64}
                                     << 20;  // per channel, received before its receive was posted
};

struct PeerAddress {
  ProcessId id{};
  std::string host;  // numeric IPv4 / IPv6 addresses and names, separated by commas: tried in turn
  std::uint16_t port = 0;
  std::string description;  // "rank 3 (site frankfurt, 10.0.0.2:4000)"
  std::string site = {};    // whose certificate the process must have; empty: any of the job
  bool rdma = false;        // segments go over RDMA, one data stream; the peer must say the same
  int path_channels = 1;    // that share the path between the two sites, this one included
  // Whether the peer is there is for others to say: neither silence, nor refusals, nor another process at its
  // address end the channel. It tries to connect until forget(), unless the peer itself ends the channel.
  bool verdict_from_above = false;
};

}  // namespace geocomm::transport
