#include <array>
#include <string>

#include "core/crc32c.h"
#include "fuzz_target.h"
#include "transport/link/handshake.h"
#include "transport/link/link_mark.h"
#include "transport/wire/wire.h"

namespace geocomm::fuzz {
namespace {

using core::StatusCode;
using transport::HeaderBytes;
using transport::kHeaderBytes;
using transport::WireHeader;

// A header from the input, with what the fuzzer need not guess repaired as its first byte asks.
HeaderBytes take_header(InputReader& reader) {
  const auto repair = reader.take<std::uint8_t>();
  auto header = reader.take<WireHeader>();
  if (repair & 1) header.magic = transport::kWireMagic;
  if (repair & 2) header.version = transport::kWireVersion;
  HeaderBytes bytes;
  std::memcpy(bytes.data(), &header, kHeaderBytes);
  if (repair & 4) {
    const std::uint32_t crc = core::crc32c(std::span(bytes).first(offsetof(WireHeader, header_crc)));
    std::memcpy(bytes.data() + offsetof(WireHeader, header_crc), &crc, sizeof crc);
  }
  return bytes;
}

void require_segment_consistent(const WireHeader& header) {
  if (!transport::check_segment(header).is_ok()) return;
  require(header.chunk < header.chunk_count && header.chunk_count <= transport::kMaxChunkCount,
          "chunk numbers");
  require(header.chunk_bytes <= transport::kMaxChunkBytes, "a chunk that is too large");
  require(header.offset <= header.chunk_bytes && header.length <= header.chunk_bytes - header.offset,
          "a segment beyond its chunk");
  require(header.length <= transport::kMaxSegmentBytes, "a segment that is too large");
}

}  // namespace

// An accepted header is the one that the writer makes, and its fields keep within their bounds.
void fuzz_wire_header(Input input) {
  InputReader reader(input);
  const HeaderBytes bytes = take_header(reader);
  const auto parsed = transport::parse_header(bytes);
  if (!parsed.is_ok()) {
    const StatusCode code = parsed.status().code();
    require(code == StatusCode::CorruptData || code == StatusCode::VersionMismatch, "an unexpected code");
    return;
  }
  require(transport::may_be_header(bytes), "a header that is dropped by its first bytes");
  require(same_bytes(transport::encode_header(*parsed), bytes), "a header that the writer would not make");
  require_segment_consistent(*parsed);
  if (const auto ack = transport::parse_ack(*parsed); ack.is_ok()) {
    const auto again = transport::parse_ack(transport::make_ack(*ack));
    require(again.is_ok() && again->low == ack->low && again->base == ack->base && again->bits == ack->bits &&
                again->control_received == ack->control_received,
            "an Ack that does not survive its writer");
  }
}

// The first packet of a stranger's connection: how much is read of it, and what of it is shown.
void fuzz_opening_packet(Input input) {
  InputReader reader(input);
  const auto header = transport::parse_header_of_any_version(take_header(reader));
  if (!header.is_ok()) {
    require(header.status().code() == StatusCode::CorruptData, "an unexpected code");
    return;
  }
  const auto bytes = transport::opening_payload_bytes(*header);
  if (!bytes.is_ok()) return;
  require(*bytes <= transport::kMaxRefuseBytes && *bytes <= header->length, "more than is there or fits");
  if (header->type != static_cast<std::uint8_t>(transport::PacketType::Refuse)) return;
  const core::Status shown = transport::refusal_of(*header, reader.take_bytes(*bytes));
  require(!shown.is_ok() && shown.message().size() <= transport::kMaxRefuseBytes + 32, "no refusal");
  for (const char c : shown.message()) {
    const auto byte = static_cast<unsigned char>(c);
    require(byte >= 0x20 && byte != 0x7F, "a control character is shown");
  }
}

// The first bytes of a TLS connection of a stranger: a mark that is found stands there as its dialer writes
// it.
void fuzz_link_mark(Input input) {
  const std::string_view hello(reinterpret_cast<const char*>(input.data()), input.size());
  const auto mark = transport::find_mark(hello);
  if (!mark) return;
  const std::string name = transport::server_name(*mark);
  require(hello.find(name) != std::string_view::npos, "a mark that is not there");
  require(transport::find_mark(name) == mark, "a mark that does not survive its writer");
}

}  // namespace geocomm::fuzz
