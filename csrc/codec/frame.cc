#include "codec/frame.h"

#include <bit>
#include <cstring>

#include "codec/block_layout.h"
#include "core/crc32c.h"
#include "core/str.h"

namespace geocomm::codec {
namespace {

using core::Status;
using core::StatusCode;

static_assert(std::endian::native == std::endian::little, "headers are copied as they lie in memory");
static_assert(offsetof(FrameHeader, block) == 8 && offsetof(FrameHeader, payload_bytes) == 16 &&
              offsetof(FrameHeader, header_crc) == 28);

template <typename... Parts>
Status corrupt(const Parts&... parts) {
  return {StatusCode::CorruptData, core::str("codec frame: ", parts...)};
}

std::uint32_t crc_of(const FrameHeader& header) {
  return core::crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, header_crc)));
}

Status check_fields(const FrameHeader& header) {
  if (header.codec > static_cast<std::uint8_t>(CodecId::Int4)) {
    return corrupt("unknown codec ", int{header.codec}, "; both ends must run the same geocomm");
  }
  if (!core::is_valid_dtype(header.dtype)) return corrupt("unknown dtype ", int{header.dtype});
  if (header.rounding > static_cast<std::uint8_t>(Rounding::Stochastic)) {
    return corrupt("unknown rounding ", int{header.rounding});
  }
  const CodecSpec spec{.id = static_cast<CodecId>(header.codec)};
  if (spec.has_blocks() ? !is_valid_block(header.block) : header.block != 0) {
    return corrupt("block of ", header.block, " elements for codec ", spec.to_string());
  }
  const auto dtype = static_cast<core::DType>(header.dtype);
  if (!spec.is_exact() && !core::is_compressible(dtype)) {
    return corrupt("codec ", spec.to_string(), " does not carry ", core::to_string(dtype));
  }
  if (header.elements > kMaxFrameElements) {
    return corrupt(header.elements, " elements; at most ", kMaxFrameElements, " are allowed");
  }
  return Status::ok();
}

// Precondition: check_fields() accepted the header.
bool is_possible_size(const FrameHeader& header) {
  const auto dtype = static_cast<core::DType>(header.dtype);
  const auto id = static_cast<CodecId>(header.codec);
  switch (id) {
    case CodecId::None:
      return header.payload_bytes == header.elements * core::size_of(dtype);
    case CodecId::Fp16:
    case CodecId::Bf16:
      return header.payload_bytes == header.elements * sizeof(std::uint16_t);
    case CodecId::Int8:
    case CodecId::Int4: {
      const BlockLayout layout(id, header.block, dtype, header.elements);
      return header.payload_bytes >= layout.min_bytes() && header.payload_bytes <= layout.max_bytes() &&
             (header.payload_bytes - layout.min_bytes()) % core::size_of(dtype) == 0;
    }
  }
  return false;
}

}  // namespace

core::Result<FrameView> parse_frame(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(FrameHeader)) {
    return corrupt("truncated: a header has ", sizeof(FrameHeader), " bytes, got ", bytes.size());
  }
  FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kFrameMagic) {
    return corrupt("wrong magic 0x", std::hex, header.magic, ", expected 0x", kFrameMagic);
  }
  if (header.version != kFrameVersion) {
    return Status(StatusCode::VersionMismatch,
                  core::str("codec frame: format version ", int{header.version}, ", this geocomm reads ",
                            int{kFrameVersion}, "; run the same version at both ends"));
  }
  if (const std::uint32_t expected = crc_of(header); header.header_crc != expected) {
    return corrupt("header crc 0x", std::hex, header.header_crc, ", expected 0x", expected);
  }
  GEOCOMM_RETURN_IF_ERROR(check_fields(header));
  if (!is_possible_size(header)) {
    return corrupt("payload of ", header.payload_bytes, " bytes does not fit ", header.elements, " elements");
  }
  const auto rest = bytes.subspan(sizeof(FrameHeader));
  if (header.payload_bytes > rest.size()) {
    return corrupt("truncated: payload of ", header.payload_bytes, " bytes, got ", rest.size());
  }
  FrameView frame;
  frame.spec.id = static_cast<CodecId>(header.codec);
  frame.spec.rounding = static_cast<Rounding>(header.rounding);
  if (frame.spec.has_blocks()) frame.spec.block = header.block;
  frame.dtype = static_cast<core::DType>(header.dtype);
  frame.elements = header.elements;
  frame.payload = rest.first(static_cast<std::size_t>(header.payload_bytes));
  return frame;
}

core::Status check_payload_crc(std::span<const std::byte> bytes, std::uint32_t actual) {
  FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (actual == header.payload_crc) return Status::ok();
  return corrupt("crc 0x", std::hex, actual, " of the payload (", std::dec, header.payload_bytes,
                 " bytes), expected 0x", std::hex, header.payload_crc);
}

core::Status verify_payload(std::span<const std::byte> bytes, const FrameView& frame) {
  return check_payload_crc(bytes, core::crc32c(frame.payload));
}

void write_frame_header(const CodecSpec& spec, core::DType dtype, std::uint32_t elements,
                        std::uint64_t payload_bytes, std::uint32_t payload_crc, std::byte* to) {
  FrameHeader header{};
  header.magic = kFrameMagic;
  header.version = kFrameVersion;
  header.codec = static_cast<std::uint8_t>(spec.id);
  header.dtype = static_cast<std::uint8_t>(dtype);
  header.rounding = static_cast<std::uint8_t>(spec.has_blocks() ? spec.rounding : Rounding::Nearest);
  header.block = spec.has_blocks() ? spec.block : 0;
  header.elements = elements;
  header.payload_bytes = payload_bytes;
  header.payload_crc = payload_crc;
  header.header_crc = crc_of(header);
  std::memcpy(to, &header, sizeof(header));
}

}  // namespace geocomm::codec
