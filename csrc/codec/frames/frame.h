// The codec frame: 32 bytes of header, then the payload. Little-endian. docs/spec/codecs.md has the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/spec/codec_spec.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::codec {

inline constexpr std::uint32_t kFrameMagic = 0x46434F47;  // "GOCF" read as bytes
inline constexpr std::uint8_t kFrameVersion = 1;
// Most elements in one frame: 2^26 (a pipeline chunk has 2^18 floats).
inline constexpr std::uint32_t kMaxFrameElements = std::uint32_t{1} << 26;

struct FrameHeader {
  std::uint32_t magic;
  std::uint8_t version;
  std::uint8_t codec;   // CodecId
  std::uint8_t dtype;   // core::DType of the source
  std::uint8_t flags;   // bit 0: Rounding, for information; bits 1, 2: Entropy
  std::uint32_t block;  // elements per block, 0 where the codec has none
  std::uint32_t elements;
  std::uint64_t payload_bytes;
  std::uint32_t payload_crc;  // CRC-32C of the payload
  std::uint32_t header_crc;   // CRC-32C of the 28 bytes before
};
static_assert(sizeof(FrameHeader) == 32);

// CorruptData of a frame.
template <typename... Parts>
core::Status corrupt_frame(const Parts&... parts) {
  return core::corrupt("codec frame: ", parts...);
}

// A parsed, checked frame: `payload` lies inside the bytes that were parsed; sizes fit each other.
struct FrameView {
  CodecSpec spec;  // settings that frames do not hold (step, k, select, values) are the defaults
  core::DType dtype = core::DType::Float32;
  std::uint32_t elements = 0;
  std::span<const std::byte> payload;
};

// Checks magic, version, header crc, ids, block, element cap, and that the payload is wholly there and of a
// size that the codec can give for these elements. Bytes after the frame are left alone (a stream of frames
// is walked with frame_bytes()). Does not check payload_crc: decoders do, once.
core::Result<FrameView> parse_frame(std::span<const std::byte> bytes);
// Checks payload_crc of a frame that parse_frame() accepted.
core::Status verify_payload(std::span<const std::byte> bytes, const FrameView& frame);
// The same, for a caller that has the payload's crc already.
core::Status check_payload_crc(std::span<const std::byte> bytes, std::uint32_t actual);
// Writes the header of a frame whose payload, already written, has these bytes and this crc.
void write_frame_header(const CodecSpec& spec, core::DType dtype, std::uint32_t elements,
                        std::uint64_t payload_bytes, std::uint32_t payload_crc, std::byte* to);
// For a frame written by an accelerator, which leaves both crcs to the host: sets them, and returns the size
// of the frame. `bytes` begins with the frame and may be longer. CorruptData: that is no frame.
core::Result<std::size_t> seal_frame(std::span<std::byte> bytes);
inline std::size_t frame_bytes(const FrameView& frame) {
  return sizeof(FrameHeader) + frame.payload.size();
}

}  // namespace geocomm::codec
