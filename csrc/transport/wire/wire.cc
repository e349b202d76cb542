#include "transport/wire/wire.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "core/crc32c.h"
#include "core/str.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

static_assert(std::endian::native == std::endian::little, "headers are copied as they lie in memory");

namespace {
constexpr std::size_t kCrcOffset = offsetof(WireHeader, header_crc);

}  // namespace

HeaderBytes encode_header(WireHeader header) {
  header.magic = kWireMagic;
  header.version = kWireVersion;
  HeaderBytes bytes;
  std::memcpy(bytes.data(), &header, kHeaderBytes);
  const std::uint32_t crc = core::crc32c(std::span(bytes).first(kCrcOffset));
  std::memcpy(bytes.data() + kCrcOffset, &crc, sizeof crc);
  return bytes;
}

WireHeader make_header(PacketType type) {
  WireHeader header{};
  header.type = static_cast<std::uint8_t>(type);
  return header;
}

WireHeader make_ack(const AckPacket& ack) {
  WireHeader header = make_header(PacketType::Ack);
  header.sequence = ack.control_received;
  header.op = ack.low;
  header.group = ack.base;
  header.descriptor = ack.bits;
  return header;
}

Result<AckPacket> parse_ack(const WireHeader& header) {
  const AckPacket ack{header.sequence, header.op, header.group, header.descriptor};
  const bool fits = ack.low >= 1 && ack.base % 64 == 0 && ack.base >= ack.low / 64 * 64 &&
                    ack.base - ack.low / 64 * 64 <= kMaxNumberSpan;
  if (!fits) return core::corrupt("acknowledgement of numbers from ", ack.base, ", low ", ack.low);
  return ack;
}

bool may_be_header(std::span<const std::byte> prefix) {
  return std::memcmp(prefix.data(), &kWireMagic, std::min(prefix.size(), sizeof kWireMagic)) == 0;
}

Result<WireHeader> parse_header_of_any_version(std::span<const std::byte, kHeaderBytes> bytes) {
  WireHeader header;
  std::memcpy(&header, bytes.data(), kHeaderBytes);
  if (header.magic != kWireMagic) {
    return core::corrupt("not a geocomm header: magic 0x", std::hex, header.magic, ", expected 0x",
                         kWireMagic);
  }
  if (const std::uint32_t crc = core::crc32c(bytes.first(kCrcOffset)); crc != header.header_crc) {
    return core::corrupt("header checksum 0x", std::hex, header.header_crc, ", expected 0x", crc);
  }
  return header;
}

Result<WireHeader> parse_header(std::span<const std::byte, kHeaderBytes> bytes) {
  GEOCOMM_ASSIGN_OR_RETURN(WireHeader header, parse_header_of_any_version(bytes));
  if (header.version != kWireVersion) return version_mismatch(header.version);
  return header;
}

Status version_mismatch(std::uint8_t theirs) {
  return {StatusCode::VersionMismatch,
          core::str("wire version ", int{theirs}, " there, version ", int{kWireVersion},
                    " here: install the same geocomm on all sites")};
}

Status check_segment(const WireHeader& header) {
  if (header.chunk_count == 0 || header.chunk_count > kMaxChunkCount || header.chunk >= header.chunk_count) {
    return core::corrupt("segment of chunk ", header.chunk, " of ", header.chunk_count, " (at most ",
                         kMaxChunkCount, ")");
  }
  if (header.chunk_bytes > kMaxChunkBytes) {
    return core::corrupt("chunk of ", header.chunk_bytes, " bytes, at most ", kMaxChunkBytes);
  }
  const bool inside = header.offset < header.chunk_bytes || (header.offset == 0 && header.chunk_bytes == 0);
  if (!inside || header.offset % kMaxSegmentBytes != 0) {
    return core::corrupt("segment at offset ", header.offset, " of a chunk of ", header.chunk_bytes,
                         " bytes (expected a multiple of ", kMaxSegmentBytes, " inside it)");
  }
  if (const std::uint32_t length = segment_length(header.chunk_bytes, header.offset);
      header.length != length) {
    return core::corrupt("segment of ", header.length, " bytes at offset ", header.offset, " of a chunk of ",
                         header.chunk_bytes, " bytes, expected ", length);
  }
  return Status::ok();
}

}  // namespace geocomm::transport
