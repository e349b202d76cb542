#include "codec/codec.h"

#include <algorithm>
#include <cstring>

#include "codec/block_codec.h"
#include "codec/block_layout.h"
#include "codec/cast_codec.h"
#include "codec/elements.h"
#include "codec/plain_codec.h"
#include "core/crc32c.h"
#include "core/str.h"

namespace geocomm::codec {
namespace {

using core::DType;
using core::Status;
using core::StatusCode;

Status too_small(std::size_t needed, std::size_t got) {
  return {StatusCode::DstTooSmall, core::str("compress: the frame needs ", needed,
                                             " bytes, dst has room for ", got, "; see compress_bound()")};
}

Status check_input(const CodecSpec& spec, DType dtype, std::span<const std::byte> src,
                   std::span<const float> residual) {
  if (src.size() % core::size_of(dtype) != 0) {
    return {StatusCode::InvalidArgument, core::str("compress: ", src.size(), " bytes are not whole ",
                                                   core::to_string(dtype), " elements")};
  }
  const std::size_t elements = src.size() / core::size_of(dtype);
  if (elements > kMaxFrameElements) {
    return {StatusCode::InvalidArgument, core::str("compress: ", elements, " elements; a frame has at most ",
                                                   kMaxFrameElements, ", split them")};
  }
  if (spec.has_blocks() && !is_valid_block(spec.block)) {
    return {StatusCode::InvalidArgument,
            core::str("compress: block of ", spec.block, " elements; it is a power of two from ", kMinBlock,
                      " to ", kMaxBlock)};
  }
  if (!core::is_compressible(dtype) && (!spec.is_exact() || !residual.empty())) {
    return {StatusCode::Unsupported,
            core::str("compress: codec ", spec.to_string(), residual.empty() ? "" : " with a residual",
                      " takes float32, float16 or bfloat16, got ", core::to_string(dtype))};
  }
  if (!residual.empty() && residual.size() != elements) {
    return {StatusCode::InvalidArgument,
            core::str("compress: residual of ", residual.size(), " floats for ", elements, " elements")};
  }
  return Status::ok();
}

// Copy and crc in turns on pieces that stay in the first-level cache: memory is passed over once.
std::uint32_t copy_with_crc(std::span<const std::byte> src, std::byte* dst) {
  constexpr std::size_t kPiece = 12288;
  std::uint32_t crc = 0;
  for (std::size_t done = 0; done < src.size(); done += kPiece) {
    const auto piece = src.subspan(done, std::min(kPiece, src.size() - done));
    std::memcpy(dst + done, piece.data(), piece.size());
    crc = core::crc32c({dst + done, piece.size()}, crc);
  }
  return crc;
}

core::Result<FrameView> open_frame(std::span<const std::byte> bytes, std::size_t element_bytes,
                                   std::size_t dst_bytes) {
  GEOCOMM_ASSIGN_OR_RETURN(const FrameView frame, parse_frame(bytes));
  const std::size_t expected =
      frame.elements * (element_bytes == 0 ? core::size_of(frame.dtype) : element_bytes);
  if (dst_bytes != expected) {
    return Status(dst_bytes < expected ? StatusCode::DstTooSmall : StatusCode::InvalidArgument,
                  core::str("decompress: the frame holds ", frame.elements, " elements that take ", expected,
                            " bytes, dst has ", dst_bytes));
  }
  return frame;
}

Status decode(const FrameView& frame, Sink sink, std::byte* dst) {
  switch (frame.spec.id) {
    case CodecId::Fp16:
    case CodecId::Bf16:
      decode_cast(frame.spec.id, frame.payload.data(), frame.elements, sink, dst);
      return Status::ok();
    case CodecId::Int8:
    case CodecId::Int4:
      return decode_blocks(frame, sink, dst);
    case CodecId::None:
      break;
  }
  decode_plain(frame.dtype, frame.payload.data(), frame.elements, sink, dst);
  return Status::ok();
}

}  // namespace

std::size_t compress_bound(const CodecSpec& spec, DType dtype, std::size_t elements) {
  // Fp16 and Bf16 may resort to a frame of None.
  std::size_t payload = elements * core::size_of(dtype);
  if (spec.has_blocks()) {
    const std::uint32_t block = std::clamp(spec.block, kMinBlock, kMaxBlock);
    payload = BlockLayout(spec.id, block, dtype, elements).max_bytes();
  } else if (!spec.is_exact()) {
    payload = std::max(payload, elements * sizeof(std::uint16_t));
  }
  return sizeof(FrameHeader) + payload;
}

core::Result<std::size_t> compress(const CodecSpec& spec, DType dtype, std::span<const std::byte> src,
                                   std::span<std::byte> dst, const CompressOptions& options) {
  GEOCOMM_RETURN_IF_ERROR(check_input(spec, dtype, src, options.residual));
  const std::size_t elements = src.size() / core::size_of(dtype);
  float* residual = options.residual.empty() ? nullptr : options.residual.data();
  CodecSpec used = spec;
  const bool is_cast = spec.id == CodecId::Fp16 || spec.id == CodecId::Bf16;
  if (is_cast && !cast_fits(spec.id, dtype, src.data(), elements, residual)) used = CodecSpec{};

  // The size is settled before anything is written: an error leaves the residual as it was.
  std::size_t payload_bytes = 0;
  if (used.has_blocks()) {
    if (dst.size() < compress_bound(used, dtype, elements)) {
      payload_bytes = encoded_blocks_bytes(used, dtype, src.data(), elements, residual);
    }
  } else {
    payload_bytes = elements * (used.is_exact() ? core::size_of(dtype) : sizeof(std::uint16_t));
  }
  if (dst.size() < sizeof(FrameHeader) + payload_bytes) {
    return too_small(sizeof(FrameHeader) + payload_bytes, dst.size());
  }

  std::byte* payload = dst.data() + sizeof(FrameHeader);
  std::uint32_t crc = 0;
  if (used.is_exact() && residual == nullptr) {
    crc = copy_with_crc(src, payload);
  } else {
    if (used.has_blocks()) {
      payload_bytes = encode_blocks(used, dtype, src.data(), elements, options, payload);
    } else if (used.is_exact()) {
      encode_plain(dtype, src.data(), elements, residual, payload);
    } else {
      encode_cast(used.id, dtype, src.data(), elements, residual, payload);
    }
    crc = core::crc32c({payload, payload_bytes});
  }
  write_frame_header(used, dtype, static_cast<std::uint32_t>(elements), payload_bytes, crc, dst.data());
  return sizeof(FrameHeader) + payload_bytes;
}

core::Status decompress(std::span<const std::byte> frame, std::span<std::byte> dst) {
  GEOCOMM_ASSIGN_OR_RETURN(const FrameView view, open_frame(frame, 0, dst.size()));
  if (view.spec.is_exact()) return check_payload_crc(frame, copy_with_crc(view.payload, dst.data()));
  GEOCOMM_RETURN_IF_ERROR(verify_payload(frame, view));
  return decode(view, sink_of(view.dtype), dst.data());
}

core::Status decompress_accumulate(std::span<const std::byte> frame, std::span<float> dst, Accumulate mode) {
  GEOCOMM_ASSIGN_OR_RETURN(const FrameView view, open_frame(frame, sizeof(float), dst.size_bytes()));
  if (!core::is_compressible(view.dtype)) {
    return {StatusCode::Unsupported,
            core::str("decompress_accumulate: takes frames of float32, float16 or bfloat16, got ",
                      core::to_string(view.dtype))};
  }
  GEOCOMM_RETURN_IF_ERROR(verify_payload(frame, view));
  return decode(view, mode == Accumulate::Add ? Sink::AddToFloat32 : Sink::Float32,
                std::as_writable_bytes(dst).data());
}

}  // namespace geocomm::codec
