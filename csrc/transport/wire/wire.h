// What travels on a stream: 64-byte headers, some followed by a payload. Little-endian. docs/spec/packets.md
// has the table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/status.h"
#include "transport/wire/ids.h"

namespace geocomm::transport {

inline constexpr std::uint32_t kWireMagic = 0x54434F47;  // "GOCT" read as bytes
inline constexpr std::uint8_t kWireVersion = 2;
inline constexpr std::uint32_t kMaxSegmentBytes = 256 * 1024;
inline constexpr std::uint32_t kMaxChunkBytes = 16 * 1024 * 1024;
inline constexpr std::uint32_t kMaxChunkCount = 1U << 20;  // of one operation
inline constexpr std::uint32_t kMaxRefuseBytes = 512;
inline constexpr std::uint32_t kMaxDataStreams = 64;
inline constexpr std::uint32_t kMaxRdmaAddressBytes = 16 * 1024;
// What an unexpected chunk costs of the peer's EndpointOptions::max_unexpected_bytes, at least.
inline constexpr std::uint32_t kMinUnexpectedCharge = 4096;
// How far the segment numbers under way may lie apart: the newest less the oldest that is not acknowledged.
inline constexpr std::uint64_t kMaxNumberSpan = std::uint64_t{1} << 20;

enum class PacketType : std::uint8_t {
  Hello = 1,    // dialer → acceptor, first on every stream; payload: HelloPayload
  Welcome = 2,  // acceptor → dialer; payload: HelloPayload of the acceptor
  Refuse = 3,   // acceptor → dialer, then close; code = StatusCode, payload: UTF-8 reason (at most 512 bytes)
  Segment = 4,  // a piece of a chunk; payload: `length` bytes at `offset` of the chunk
  Grant = 5,    // the sender of this packet has posted the receive of (group, op): send without limit
  Heartbeat = 6,  // `op` carries the sender's steady clock in ns. `chunk`: data streams that the sender would
                  // like, 0 if it does not care
  HeartbeatReply = 7,  // `op` as in the Heartbeat; `group`, `descriptor`: the answerer's steady clock in ns
                       // when that came, and at the reply
  Close = 8,           // orderly end: everything sent is acknowledged, nothing new will be posted or sent
  Ack = 9,             // which segments and reliable control packets have arrived
  Reset = 10,          // the sender has given the link up; code = StatusCode of the reason
  RdmaAddress = 11,  // first, and only, on a data stream of an RDMA link; payload: the sender's address there
};

struct WireHeader {
  std::uint32_t magic;
  std::uint8_t version;
  std::uint8_t type;          // PacketType
  std::uint16_t code;         // Refuse, Reset: StatusCode; else 0
  std::uint64_t sequence;     // Segment; Grant, Close: their number, from 1; Ack: see AckPacket; else 0
  std::uint64_t group;        // OpKey::group
  std::uint64_t op;           // OpKey::op; RdmaAddress: the token to put before each message
  std::uint64_t descriptor;   // opaque to transport: what the sender believes the operation is
  std::uint32_t chunk;        // index of the chunk in the operation
  std::uint32_t chunk_count;  // chunks that this peer sends for the operation
  std::uint32_t chunk_bytes;  // size of the whole chunk
  std::uint32_t offset;       // of this segment in the chunk
  std::uint32_t length;       // payload bytes that follow this header
  std::uint32_t header_crc;   // CRC-32C of the 60 bytes before
};
static_assert(sizeof(WireHeader) == 64);
inline constexpr std::size_t kHeaderBytes = sizeof(WireHeader);
using HeaderBytes = std::array<std::byte, kHeaderBytes>;

// What carries the segments of a link.
enum class DataPath : std::uint8_t { Tcp = 0, Rdma = 1 };

// Follows Hello and Welcome. The first 48 bytes mean the same in every version.
struct HelloPayload {
  ProcessId sender;
  ProcessId receiver;                     // whom the sender believes to be talking to
  JobToken token;                         // Welcome: zero
  std::uint64_t max_unexpected_bytes;     // the sender's EndpointOptions::max_unexpected_bytes
  std::uint16_t stream;                   // 0: the control stream; 1 to stream_count: a data stream
  std::uint16_t stream_count;             // data streams of the channel, or more than there were
  std::uint32_t generation;               // which connection of this stream number: larger is newer
  std::uint64_t control_received;         // reliable control packets that the sender has received
  std::array<std::uint8_t, 32> binding;   // TLS: ties a data stream to the control stream's session; else 0
  DataPath data_path;                     // the same in Welcome, and in all of a link's
  std::array<std::uint8_t, 7> reserved;   // 0
  std::uint64_t receive_buffer_bytes;     // TCP's limit for a connection at the sender; 0: unknown
  std::array<std::uint8_t, 8> reserved2;  // 0
};
static_assert(sizeof(HelloPayload) == 128);
inline constexpr std::size_t kCommonHelloBytes = 48;

// What an Ack says: all segments below `low` have arrived, and of those from `base` (a multiple of 64, not
// below low rounded down) on, the ones whose bit is set.
struct AckPacket {
  std::uint64_t control_received = 0;  // reliable control packets, in order
  std::uint64_t low = 1;
  std::uint64_t base = 0;
  std::uint64_t bits = 0;
};
WireHeader make_ack(const AckPacket& ack);
// CorruptData unless its fields agree with each other.
core::Result<AckPacket> parse_ack(const WireHeader& header);

// Fills in magic, version and checksum.
HeaderBytes encode_header(WireHeader header);
// A header of `type` and nothing else.
WireHeader make_header(PacketType type);
// CorruptData for a wrong magic or checksum, VersionMismatch (naming both) for another version.
core::Result<WireHeader> parse_header(std::span<const std::byte, kHeaderBytes> bytes);
// Whether the first bytes of a connection, however few, can be a header. Cheap: drops strangers at once.
bool may_be_header(std::span<const std::byte> prefix);
// As parse_header, of any version: for Hello and Refuse, whose magic, version, type, code, length and
// checksum stand at the same place in every version.
core::Result<WireHeader> parse_header_of_any_version(std::span<const std::byte, kHeaderBytes> bytes);
// What to say to, and about, a peer of another version.
core::Status version_mismatch(std::uint8_t theirs);

// CorruptData unless the fields of a Segment agree with each other: chunk < chunk_count <= kMaxChunkCount,
// chunk_bytes <= kMaxChunkBytes, offset a multiple of kMaxSegmentBytes inside the chunk (0 for an empty
// chunk), length exactly what segment_length() says.
core::Status check_segment(const WireHeader& header);
// Length of the segment at `offset`: kMaxSegmentBytes, less at the end of the chunk.
// Precondition: offset <= chunk_bytes.
constexpr std::uint32_t segment_length(std::uint32_t chunk_bytes, std::uint32_t offset) {
  const std::uint32_t left = chunk_bytes - offset;
  return left < kMaxSegmentBytes ? left : kMaxSegmentBytes;
}
// Segments of a chunk, at least 1 (an empty chunk is one empty segment), at most 64.
constexpr std::uint32_t segment_count(std::uint32_t chunk_bytes) {
  return chunk_bytes == 0 ? 1 : (chunk_bytes - 1) / kMaxSegmentBytes + 1;
}
static_assert(segment_count(kMaxChunkBytes) == 64);
// Bytes of credit that a chunk of an operation that is not posted takes.
constexpr std::uint64_t unexpected_charge(std::uint32_t chunk_bytes) {
  return chunk_bytes < kMinUnexpectedCharge ? kMinUnexpectedCharge : chunk_bytes;
}

}  // namespace geocomm::transport
