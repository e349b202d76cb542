// What travels on a stream: 64-byte headers, some followed by a payload. Little-endian. docs/wire-format.md
// has the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/status.h"

namespace geocomm::transport {

inline constexpr std::uint32_t kWireMagic = 0x54434F47;  // "GOCT" read as bytes
inline constexpr std::uint8_t kWireVersion = 1;
inline constexpr std::uint32_t kMaxSegmentBytes = 256 * 1024;
inline constexpr std::uint32_t kMaxChunkBytes = 16 * 1024 * 1024;

enum class FrameType : std::uint8_t {
  Hello = 1,    // dialer → acceptor, first on every stream; payload: HelloPayload
  Welcome = 2,  // acceptor → dialer; payload: HelloPayload of the acceptor
  Refuse = 3,   // acceptor → dialer, then close; code = StatusCode, payload: UTF-8 reason (at most 512 bytes)
  Segment = 4,  // a piece of a chunk; payload: `length` bytes at `offset` of the chunk
  Posted = 5,   // the sender of this frame has posted the receive of (group, op): send without limit
  Heartbeat = 6,  // `op` carries the sender's clock in ns; answered by HeartbeatReply with the same
  HeartbeatReply = 7,
  Goodbye = 8,  // orderly end: nothing more will be sent on this channel
  Ack = 9,      // reserved for resume
};

struct WireHeader {
  std::uint32_t magic;
  std::uint8_t version;
  std::uint8_t type;          // FrameType
  std::uint16_t code;         // Refuse: StatusCode; else 0
  std::uint32_t link;         // which link between the two processes; 0 until links can resume
  std::uint32_t epoch;        // incarnation of the link; 0 until links can resume
  std::uint64_t group;        // OpKey::group
  std::uint64_t op;           // OpKey::op
  std::uint64_t descriptor;   // opaque to transport: what the sender believes the operation is
  std::uint32_t chunk;        // index of the chunk in the operation
  std::uint32_t chunk_count;  // chunks that this peer sends for the operation
  std::uint32_t chunk_bytes;  // size of the whole chunk
  std::uint32_t offset;       // of this segment in the chunk
  std::uint32_t length;       // payload bytes that follow this header
  std::uint32_t header_crc;   // CRC-32C of the 60 bytes before
};
static_assert(sizeof(WireHeader) == 64);

}  // namespace geocomm::transport
