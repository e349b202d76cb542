#include "codec/frames/frame.h"

#include <bit>
#include <cstring>

#include "codec/frames/payload_codec.h"
#include "core/crc32c.h"
#include "core/str.h"

namespace geocomm::codec {
namespace {

using core::Status;
using core::StatusCode;

static_assert(std::endian::native == std::endian::little, "headers are copied as they lie in memory");
static_assert(offsetof(FrameHeader, block) == 8 && offsetof(FrameHeader, payload_bytes) == 16 &&
              offsetof(FrameHeader, header_crc) == 28);

std::uint32_t crc_of(const FrameHeader& header) {
  return core::crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, header_crc)));
}

// Byte 7: rounding in bit 0, the entropy stage in bits 1 and 2.
constexpr std::uint8_t kRoundingMask = 1;
constexpr int kEntropyShift = 1;

// What the header says of the codec; settings that frames do not hold are the defaults.
CodecSpec spec_of(const FrameHeader& header) {
  CodecSpec spec;
  spec.id = static_cast<CodecId>(header.codec);
  spec.rounding = static_cast<Rounding>(header.flags & kRoundingMask);
  spec.entropy = static_cast<Entropy>(header.flags >> kEntropyShift);
  if (spec.has_blocks()) spec.block = header.block;
  return spec;
}

Status check_fields(const FrameHeader& header) {
  if (!is_codec(header.codec)) {
    return corrupt_frame("unknown codec ", int{header.codec}, "; both ends must run the same geocomm");
  }
  if (!core::is_valid_dtype(header.dtype)) return corrupt_frame("unknown dtype ", int{header.dtype});
  if (header.flags >> kEntropyShift > static_cast<int>(Entropy::Zstd)) {
    return corrupt_frame("unknown flags ", int{header.flags});
  }
  const CodecSpec spec = spec_of(header);
  if (spec.rounding != Rounding::Nearest && !spec.has_rounding()) {
    return corrupt_frame("codec ", spec.to_string(), " has no rounding");
  }
  if ((spec.id == CodecId::None && spec.entropy != Entropy::None) ||
      (spec.id == CodecId::TopK && spec.entropy == Entropy::None) ||
      (spec.id == CodecId::Loco && spec.entropy != Entropy::None)) {
    return corrupt_frame("codec ", int{header.codec}, " with flags ", int{header.flags});
  }
  if (spec.has_blocks() ? !is_valid_block(header.block) : header.block != 0) {
    return corrupt_frame("block of ", header.block, " elements for codec ", spec.to_string());
  }
  const auto dtype = static_cast<core::DType>(header.dtype);
  if (spec.id != CodecId::None && !core::is_compressible(dtype)) {
    return corrupt_frame("codec ", spec.to_string(), " does not carry ", core::to_string(dtype));
  }
  if (header.elements > kMaxFrameElements) {
    return corrupt_frame(header.elements, " elements; at most ", kMaxFrameElements, " are allowed");
  }
  return Status::ok();
}

}  // namespace

core::Result<FrameView> parse_frame(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(FrameHeader)) {
    return corrupt_frame("truncated: a header has ", sizeof(FrameHeader), " bytes, got ", bytes.size());
  }
  FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kFrameMagic) {
    return corrupt_frame("wrong magic 0x", std::hex, header.magic, ", expected 0x", kFrameMagic);
  }
  if (header.version != kFrameVersion) {
    return Status(StatusCode::VersionMismatch,
                  core::str("codec frame: format version ", int{header.version}, ", this geocomm reads ",
                            int{kFrameVersion}, "; run the same version at both ends"));
  }
  if (const std::uint32_t expected = crc_of(header); header.header_crc != expected) {
    return corrupt_frame("header crc 0x", std::hex, header.header_crc, ", expected 0x", expected);
  }
  GEOCOMM_RETURN_IF_ERROR(check_fields(header));
  const CodecSpec spec = spec_of(header);
  const auto dtype = static_cast<core::DType>(header.dtype);
  const SizeRange sizes = payload_codec(spec.id).possible_sizes(spec, dtype, header.elements);
  if (header.payload_bytes < sizes.least || header.payload_bytes > sizes.most) {
    return corrupt_frame("payload of ", header.payload_bytes, " bytes does not fit ", header.elements,
                         " elements");
  }
  const auto rest = bytes.subspan(sizeof(FrameHeader));
  if (header.payload_bytes > rest.size()) {
    return corrupt_frame("truncated: payload of ", header.payload_bytes, " bytes, got ", rest.size());
  }
  FrameView frame;
  frame.spec = spec;
  frame.dtype = dtype;
  frame.elements = header.elements;
  frame.payload = rest.first(static_cast<std::size_t>(header.payload_bytes));
  return frame;
}

core::Status check_payload_crc(std::span<const std::byte> bytes, std::uint32_t actual) {
  FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (actual == header.payload_crc) return Status::ok();
  return corrupt_frame("crc 0x", std::hex, actual, " of the payload (", std::dec, header.payload_bytes,
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
  header.flags = static_cast<std::uint8_t>(static_cast<int>(spec.entropy) << kEntropyShift);
  if (spec.has_rounding()) header.flags |= static_cast<std::uint8_t>(spec.rounding);
  header.block = spec.has_blocks() ? spec.block : 0;
  header.elements = elements;
  header.payload_bytes = payload_bytes;
  header.payload_crc = payload_crc;
  header.header_crc = crc_of(header);
  std::memcpy(to, &header, sizeof(header));
}

core::Result<std::size_t> seal_frame(std::span<std::byte> bytes) {
  FrameHeader header;
  if (bytes.size() < sizeof(header)) return corrupt_frame("no room for a header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.payload_bytes > bytes.size() - sizeof(header)) {
    return corrupt_frame("payload of ", header.payload_bytes, " bytes in ", bytes.size());
  }
  const auto payload = bytes.subspan(sizeof(header), static_cast<std::size_t>(header.payload_bytes));
  header.payload_crc = core::crc32c(payload);
  header.header_crc = crc_of(header);
  std::memcpy(bytes.data(), &header, sizeof(header));
  GEOCOMM_ASSIGN_OR_RETURN(const FrameView frame, parse_frame(bytes));
  return frame_bytes(frame);
}

}  // namespace geocomm::codec
