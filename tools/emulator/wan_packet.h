// What a TUN device opened with IFF_VNET_HDR hands over: a virtio_net_hdr and one IPv4 packet, which is a TCP
// super-packet of many MSS segments where the header says so. Pure functions over bytes: no I/O, no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/status.h"

namespace geocomm::emulator {

inline constexpr std::size_t kVnetHeaderBytes = 10;
inline constexpr std::size_t kMaxFrameBytes = kVnetHeaderBytes + 65535;

// A parsed view of a frame; valid as long as the bytes that it was parsed from.
struct Frame {
  std::span<const std::byte> bytes;  // virtio_net_hdr and packet
  std::uint32_t dst_address = 0;     // host byte order
  std::size_t ip_header_bytes = 0;
  std::size_t header_bytes =
      0;  // IP and TCP headers, which every segment repeats; IP header alone if not TCP GSO
  std::size_t payload_bytes = 0;          // what follows them
  std::size_t segment_payload_bytes = 0;  // payload of every segment but the last, which may have less
  std::size_t segments = 1;
  bool resettable = false;  // TCP with neither SYN nor RST

  // Payload and IP-level size (headers included, no link-layer overhead) of `count` segments from `first` on.
  // Precondition: first + count <= segments.
  std::size_t run_payload_bytes(std::size_t first, std::size_t count) const;
  std::size_t run_wire_bytes(std::size_t first, std::size_t count) const;
};

// Every length in `bytes` is checked. Unsupported: not IPv4, or a kind of GSO that was not asked for.
// CorruptData: lengths that contradict each other.
core::Result<Frame> parse_frame(std::span<const std::byte> bytes);

// Segments [first, first + count) of a frame as a frame of their own, ready to be written to a TUN device:
// sequence number, IP id and lengths moved on, CWR only with segment 0, FIN and PSH only with the last, IP
// checksum computed and the TCP checksum left to the receiving kernel. Precondition: count > 0 and first +
// count <= frame.segments.
std::vector<std::byte> extract_run(const Frame& frame, std::size_t first, std::size_t count);

// What a middlebox that breaks the connection sends on instead of segment `segment`: a RST with its sequence
// number. Precondition: frame.resettable and segment < frame.segments.
std::vector<std::byte> make_reset(const Frame& frame, std::size_t segment);

}  // namespace geocomm::emulator
