#include "codec/frames/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codec/entropy/plane.h"
#include "codec/frames/elements.h"
#include "codec/frames/payload_codec.h"
#include "codec/frames/streaming.h"
#include "codec/frames/thread_scratch.h"
#include "core/crc32c.h"
#include "core/float_rules.h"
#include "core/str.h"

namespace geocomm::codec {
namespace {

using core::DType;
using core::Status;
using core::StatusCode;

Status too_small(std::size_t needed, std::size_t got) {
  return {StatusCode::OutputTooSmall, core::str("compress: the frame needs ", needed,
                                                " bytes, dst has room for ", got, "; see compress_bound()")};
}

Status check_settings(const CodecSpec& spec) {
  if (spec.has_blocks() && !is_valid_block(spec.block)) {
    return {StatusCode::InvalidArgument,
            core::str("compress: block of ", spec.block, " elements; it is a power of two from ", kMinBlock,
                      " to ", kMaxBlock)};
  }
  if (!has_stage(spec.entropy)) {
    return {StatusCode::Unsupported, core::str("compress: codec ", spec.to_string(),
                                               " needs a stage that this build of geocomm lacks")};
  }
  return Status::ok();
}

Status check_feedback(const ErrorFeedback& feedback, std::size_t elements) {
  if (!feedback.is_on()) return Status::ok();
  if (feedback.dtype != DType::Float32 && feedback.dtype != DType::BFloat16) {
    return {StatusCode::InvalidArgument,
            core::str("compress: a residual is float32 or bfloat16, got ", core::to_string(feedback.dtype))};
  }
  if (feedback.elements != elements) {
    return {StatusCode::InvalidArgument, core::str("compress: a residual of ", feedback.elements,
                                                   " elements for ", elements, " of input")};
  }
  if (!std::isfinite(feedback.decay)) {
    return {StatusCode::InvalidArgument, "compress: the decay of the residual is not finite"};
  }
  return Status::ok();
}

Status check_input(const CodecSpec& spec, DType dtype, std::span<const std::byte> src,
                   const ErrorFeedback& feedback) {
  if (src.size() % core::size_of(dtype) != 0) {
    return {StatusCode::InvalidArgument, core::str("compress: ", src.size(), " bytes are not whole ",
                                                   core::to_string(dtype), " elements")};
  }
  const std::size_t elements = src.size() / core::size_of(dtype);
  if (elements > kMaxFrameElements) {
    return {StatusCode::InvalidArgument, core::str("compress: ", elements, " elements; a frame has at most ",
                                                   kMaxFrameElements, ", split them")};
  }
  GEOCOMM_RETURN_IF_ERROR(check_settings(spec));
  if (!core::is_compressible(dtype) && (!spec.is_exact() || feedback.is_on())) {
    return {StatusCode::Unsupported,
            core::str("compress: codec ", spec.to_string(), feedback.is_on() ? " with a residual" : "",
                      " takes float32, float16 or bfloat16, got ", core::to_string(dtype))};
  }
  return check_feedback(feedback, elements);
}

CodecSpec with_valid_block(CodecSpec spec) {
  spec.block = std::clamp(spec.block, kMinBlock, kMaxBlock);
  return spec;
}

// Copies `src` and returns its crc, in turns on pieces that stay in the first-level cache: memory is passed
// over once. step(piece, to, crc) copies one piece and returns the crc with it.
template <typename Step>
std::uint32_t crc_by_pieces(std::span<const std::byte> src, std::byte* dst, Step step) {
  constexpr std::size_t kPiece = 12288;
  std::uint32_t crc = 0;
  for (std::size_t done = 0; done < src.size(); done += kPiece) {
    crc = step(src.subspan(done, std::min(kPiece, src.size() - done)), dst + done, crc);
  }
  return crc;
}

std::uint32_t copy_with_crc(std::span<const std::byte> src, std::byte* dst) {
  return crc_by_pieces(src, dst, [](std::span<const std::byte> piece, std::byte* to, std::uint32_t crc) {
    std::memcpy(to, piece.data(), piece.size());
    return core::crc32c({to, piece.size()}, crc);
  });
}

// Past the caches: what was written is not there to be read, so the crc is that of the source.
std::uint32_t stream_with_crc(std::span<const std::byte> src, std::byte* dst) {
  const std::uint32_t crc =
      crc_by_pieces(src, dst, [](std::span<const std::byte> piece, std::byte* to, std::uint32_t before) {
        const std::uint32_t with = core::crc32c(piece, before);
        copy_streaming(to, piece.data(), piece.size());
        return with;
      });
  end_streaming();
  return crc;
}

core::Result<FrameView> open_frame(std::span<const std::byte> bytes, std::size_t element_bytes,
                                   std::size_t dst_bytes) {
  GEOCOMM_ASSIGN_OR_RETURN(const FrameView frame, parse_frame(bytes));
  const std::size_t expected =
      frame.elements * (element_bytes == 0 ? core::size_of(frame.dtype) : element_bytes);
  if (dst_bytes != expected) {
    return Status(dst_bytes < expected ? StatusCode::OutputTooSmall : StatusCode::InvalidArgument,
                  core::str("decompress: the frame holds ", frame.elements, " elements that take ", expected,
                            " bytes, dst has ", dst_bytes));
  }
  return frame;
}

}  // namespace

const PayloadCodec& payload_codec(CodecId id) {
  switch (id) {
    case CodecId::None:
      break;
    case CodecId::Fp16:
    case CodecId::Bf16:
      return kCastCodec;
    case CodecId::Int8:
    case CodecId::Int4:
    case CodecId::Bit2:
    case CodecId::Bit1:
      return kBlockCodec;
    case CodecId::DeadZone:
    case CodecId::BitPlanes:
      return kDeadZoneCodec;
    case CodecId::TopK:
      return kTopKCodec;
    case CodecId::Lossless:
      return kLosslessCodec;
    case CodecId::Loco:
      return kLocoCodec;
  }
  return kPlainCodec;
}

std::size_t usual_compress_bound(const CodecSpec& spec, DType dtype, std::size_t elements) {
  return sizeof(FrameHeader) + payload_codec(spec.id).usual_bound(with_valid_block(spec), dtype, elements);
}

std::size_t compress_bound(const CodecSpec& spec, DType dtype, std::size_t elements) {
  // Any codec may resort to a frame of None.
  const std::size_t payload = std::max(payload_codec(spec.id).bound(with_valid_block(spec), dtype, elements),
                                       elements * core::size_of(dtype));
  return sizeof(FrameHeader) + payload;
}

core::Result<std::size_t> compress(const CodecSpec& spec, DType dtype, std::span<const std::byte> src,
                                   std::span<std::byte> dst, const CompressOptions& options) {
  const core::FloatRules rules;
  const ScratchOfFrame scratch;
  GEOCOMM_RETURN_IF_ERROR(check_input(spec, dtype, src, options.feedback));
  const std::size_t elements = src.size() / core::size_of(dtype);
  if (const std::size_t bound = compress_bound(spec, dtype, elements); dst.size() < bound) {
    return too_small(bound, dst.size());
  }
  std::byte* payload = dst.data() + sizeof(FrameHeader);
  CodecSpec used = spec;
  std::size_t payload_bytes = kResortToNone;
  if (spec.id != CodecId::None) {
    payload_bytes = payload_codec(spec.id).encode({spec, dtype, src.data(), elements, options}, payload);
  }
  std::uint32_t crc = 0;
  if (payload_bytes != kResortToNone) {
    crc = core::crc32c({payload, payload_bytes});
  } else {
    used = CodecSpec{};
    payload_bytes = src.size();
    if (options.feedback.is_on()) {
      kPlainCodec.encode({used, dtype, src.data(), elements, options}, payload);
      crc = core::crc32c({payload, payload_bytes});
    } else {
      crc = copy_with_crc(src, payload);
    }
  }
  write_frame_header(used, dtype, static_cast<std::uint32_t>(elements), payload_bytes, crc, dst.data());
  return sizeof(FrameHeader) + payload_bytes;
}

core::Status decompress(std::span<const std::byte> frame, std::span<std::byte> dst, Stores stores) {
  const core::FloatRules rules;
  const ScratchOfFrame scratch;
  GEOCOMM_ASSIGN_OR_RETURN(const FrameView view, open_frame(frame, 0, dst.size()));
  const bool streams =
      stores == Stores::Streaming && reinterpret_cast<std::uintptr_t>(dst.data()) % kStreamAlignment == 0;
  if (view.spec.id == CodecId::None) {
    const auto crc =
        streams ? stream_with_crc(view.payload, dst.data()) : copy_with_crc(view.payload, dst.data());
    return check_payload_crc(frame, crc);
  }
  GEOCOMM_RETURN_IF_ERROR(verify_payload(frame, view));
  const PayloadCodec& codec = payload_codec(view.spec.id);
  if (!streams || view.dtype != DType::Float32) return codec.decode(view, sink_of(view.dtype), dst.data());
  const Status decoded = codec.decode(view, Sink::StreamedFloat32, dst.data());
  end_streaming();
  return decoded;
}

core::Status decompress_accumulate(std::span<const std::byte> frame, std::span<float> dst, Accumulate mode) {
  const core::FloatRules rules;
  const ScratchOfFrame scratch;
  GEOCOMM_ASSIGN_OR_RETURN(const FrameView view, open_frame(frame, sizeof(float), dst.size_bytes()));
  if (!core::is_compressible(view.dtype)) {
    return {StatusCode::Unsupported,
            core::str("decompress_accumulate: takes frames of float32, float16 or bfloat16, got ",
                      core::to_string(view.dtype))};
  }
  GEOCOMM_RETURN_IF_ERROR(verify_payload(frame, view));
  const Sink sink = mode == Accumulate::Add ? Sink::AddToFloat32 : Sink::Float32;
  return payload_codec(view.spec.id).decode(view, sink, std::as_writable_bytes(dst).data());
}

}  // namespace geocomm::codec
