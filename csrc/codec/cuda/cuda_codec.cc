#include "codec/cuda/cuda_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codec/cuda/kernels.h"
#include "codec/cuda/payload_plan.h"
#include "codec/cuda/verdict.h"
#include "codec/frame.h"
#include "codec/payload.h"
#include "core/crc32c.h"
#include "core/str.h"

namespace geocomm::codec::cuda {
namespace {

using core::DType;
using core::Status;
using core::StatusCode;

constexpr std::size_t kAlignment = 16;

bool is_aligned_to(const void* address, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

std::uint8_t* words(std::byte* bytes) {
  return reinterpret_cast<std::uint8_t*>(bytes);
}
const std::uint8_t* words(const std::byte* bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes);
}

Status invalid(const char* what) {
  return {StatusCode::InvalidArgument, core::str("CUDA codec: ", what)};
}

// What both directions ask of their caller.
Status check_call(const CodecSpec& spec, DType dtype, std::uint64_t elements, Framing framing,
                  std::span<const std::byte> workspace) {
  if (!is_supported(spec, dtype)) {
    return {StatusCode::Unsupported,
            core::str("CUDA codec: no kernels for codec ", spec.to_string(), " of ", core::to_string(dtype))};
  }
  if (spec.has_blocks() && !is_valid_block(spec.block)) return invalid("block out of range");
  if (framing == Framing::SingleFrame && elements > kMaxFrameElements) {
    return invalid("more elements than a frame can have");
  }
  if (elements / (kPayloadFrameBytes / core::size_of(dtype)) >= std::uint64_t{1} << 31) {
    return invalid("more frames than a payload can have");
  }
  if (!is_aligned_to(workspace.data(), kAlignment))
    return invalid("the workspace is not aligned to 16 bytes");
  if (workspace.size() < workspace_bytes(spec, dtype, elements, framing)) {
    return {StatusCode::InvalidArgument,
            core::str("CUDA codec: a workspace of ", workspace.size(), " bytes, ",
                      workspace_bytes(spec, dtype, elements, framing), " are needed")};
  }
  return Status::ok();
}

Status check_feedback(const ErrorFeedback& feedback, DType dtype, std::uint64_t elements) {
  if (!feedback.is_on()) return Status::ok();
  if (!core::is_compressible(dtype)) {
    return {StatusCode::Unsupported, core::str("CUDA codec: no residual for ", core::to_string(dtype))};
  }
  if (feedback.dtype != DType::Float32 && feedback.dtype != DType::BFloat16) {
    return invalid("a residual is float32 or bfloat16");
  }
  if (feedback.elements != elements) return invalid("the residual has not as many elements as the input");
  if (!std::isfinite(feedback.decay)) return invalid("the decay of the residual is not finite");
  if (!is_aligned_to(feedback.residual, core::size_of(feedback.dtype))) {
    return invalid("the residual is not aligned to its elements");
  }
  return Status::ok();
}

FrameHeader header_of(const CodecSpec& spec, DType dtype) {
  std::byte bytes[sizeof(FrameHeader)];
  write_frame_header(spec, dtype, 0, 0, 0, bytes);
  FrameHeader header;
  std::memcpy(&header, bytes, sizeof(header));
  header.header_crc = 0;
  return header;
}

std::size_t largest_plane(const PayloadPlan& plan) {
  const FrameExtent& largest = plan.frames > 1 ? plan.full : plan.last;
  return largest.bytes - largest.codes_at;
}

struct Encoding {
  const CodecSpec& spec;
  DType dtype;
  ElementEncode elements;
  BlockEncode blocks;
  LayoutArgs layout;
  HuffmanSpace space;
  Stream stream;
};

Status encode_by_elements(const Encoding& run) {
  if (run.spec.id == CodecId::None) {
    GEOCOMM_RETURN_IF_ERROR(run.elements.residual.data != nullptr
                                ? encode_plain_sums(run.dtype, run.elements, run.stream)
                                : copy_into_frames(run.elements, run.stream));
    return lay_out_frames(run.layout, run.stream);
  }
  // A frame that a cast cannot carry leaves the residual to its frame of None, so with a residual the check
  // comes first. Without one the encoder checks on the way, and runs again in the rare case.
  const CastPass first = run.elements.residual.data != nullptr ? CastPass::Check : CastPass::Regular;
  GEOCOMM_RETURN_IF_ERROR(encode_casts(run.spec.id, run.dtype, first, run.elements, run.stream));
  GEOCOMM_RETURN_IF_ERROR(lay_out_frames(run.layout, run.stream));
  return encode_casts(run.spec.id, run.dtype, CastPass::Placed, run.elements, run.stream);
}

Status quantize(const Encoding& run, const BlockEncode& args) {
  return run.spec.has_rounding() ? encode_int_blocks(run.spec.id, run.dtype, args, run.stream)
                                 : encode_bit_blocks(run.spec.id, run.dtype, args, run.stream);
}

Status encode_by_staged_blocks(const Encoding& run) {
  const PayloadPlan& plan = run.blocks.plan;
  const Workspace& workspace = run.blocks.workspace;
  BlockEncode before_stage = run.blocks;
  before_stage.dst = workspace.shifted;
  GEOCOMM_RETURN_IF_ERROR(quantize(run, before_stage));
  GEOCOMM_RETURN_IF_ERROR(encode_stage(plan, workspace, run.space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(lay_out_frames(run.layout, run.stream));
  GEOCOMM_RETURN_IF_ERROR(write_staged_frames(run.blocks.dst, plan, workspace, run.space, run.stream));
  return write_raw_blocks(run.dtype, run.blocks, run.stream);
}

Status encode_by_blocks(const Encoding& run) {
  if (run.layout.has_stage) return encode_by_staged_blocks(run);
  GEOCOMM_RETURN_IF_ERROR(quantize(run, run.blocks));
  GEOCOMM_RETURN_IF_ERROR(lay_out_frames(run.layout, run.stream));
  GEOCOMM_RETURN_IF_ERROR(move_frames(run.blocks.dst, run.blocks.plan, run.blocks.workspace, run.stream));
  return write_raw_blocks(run.dtype, run.blocks, run.stream);
}

// Behind the rest of the workspace.
HuffmanSpace stage_space(const CodecSpec& spec, const PayloadPlan& plan, std::span<std::byte> workspace) {
  if (spec.entropy == Entropy::None) return {};
  return cut_huffman_space(plan.frames, largest_plane(plan),
                           workspace.data() + bytes_of_workspace(spec, plan));
}

Status decode_by_id(CodecId id, const Decode& args, Stream stream) {
  if (id == CodecId::None && (!core::is_compressible(args.dtype) || args.sink == sink_of(args.dtype))) {
    return copy_out_of_frames(args, stream);
  }
  if (id <= CodecId::Bf16) return decode_elements(id, args, stream);
  return decode_blocks(id, args, stream);
}

}  // namespace

bool is_supported(const CodecSpec& spec, DType dtype) {
  if (spec.id > CodecId::Bit1) return false;
  if (spec.entropy == Entropy::Zstd || (spec.entropy == Entropy::Huffman && !spec.has_blocks())) return false;
  return spec.id == CodecId::None || core::is_compressible(dtype);
}

std::uint64_t frame_count(DType dtype, std::uint64_t elements, Framing framing) {
  return make_plan(CodecSpec{}, dtype, elements, framing).frames;
}

std::size_t encoded_bound(const CodecSpec& spec, DType dtype, std::uint64_t elements, Framing framing) {
  return framing == Framing::Payload ? payload_bound(spec, dtype, elements)
                                     : compress_bound(spec, dtype, elements);
}

std::size_t workspace_bytes(const CodecSpec& spec, DType dtype, std::uint64_t elements, Framing framing) {
  const PayloadPlan plan = make_plan(spec, dtype, elements, framing);
  const bool has_stage = spec.entropy != Entropy::None;
  return bytes_of_workspace(spec, plan) +
         (has_stage ? huffman_space_bytes(plan.frames, largest_plane(plan)) : 0);
}

Status compress_payload(const CodecSpec& spec, DType dtype, const std::byte* src_dev, std::uint64_t elements,
                        std::span<std::byte> dst_dev, const EncodeOptions& options,
                        std::span<std::byte> workspace_dev, std::uint64_t* bytes_out_dev, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(check_call(spec, dtype, elements, options.framing, workspace_dev));
  GEOCOMM_RETURN_IF_ERROR(check_feedback(options.feedback, dtype, elements));
  if (!is_aligned_to(src_dev, core::size_of(dtype))) return invalid("src is not aligned to its elements");
  if (!is_aligned_to(dst_dev.data(), kAlignment)) return invalid("dst is not aligned to 16 bytes");
  if (const std::size_t bound = encoded_bound(spec, dtype, elements, options.framing);
      dst_dev.size() < bound) {
    return {StatusCode::DstTooSmall, core::str("CUDA codec: the payload may take ", bound,
                                               " bytes, dst has room for ", dst_dev.size())};
  }

  const PayloadPlan plan = make_plan(spec, dtype, elements, options.framing);
  const Workspace workspace = cut_workspace(plan, workspace_dev.data());
  const ResidualView residual{words(options.feedback.residual), options.feedback.dtype == DType::BFloat16,
                              options.feedback.decay};
  std::uint8_t* dst = words(dst_dev.data());
  const Encoding run{spec,
                     dtype,
                     {words(src_dev), dst, residual, plan, workspace},
                     {words(src_dev), dst, residual, options.seed, options.first_element,
                      spec.rounding == Rounding::Stochastic, plan, workspace},
                     {plan, workspace, spec.id == CodecId::Fp16 || spec.id == CodecId::Bf16, bytes_out_dev,
                      options.frame_ends_dev, spec.entropy != Entropy::None},
                     stage_space(spec, plan, workspace_dev),
                     stream};
  GEOCOMM_RETURN_IF_ERROR(clear_records(plan, workspace, stream));
  GEOCOMM_RETURN_IF_ERROR(spec.has_blocks() ? encode_by_blocks(run) : encode_by_elements(run));
  const bool with_checksums = options.checksums == Checksums::Device;
  if (with_checksums) {
    GEOCOMM_RETURN_IF_ERROR(sum_payload_crcs(dst, plan, workspace, nullptr, stream));
  }
  return write_headers(
      {dst, plan, workspace, header_of(spec, dtype), header_of(CodecSpec{}, dtype), with_checksums}, stream);
}

Status decompress_payload(const CodecSpec& spec, DType dtype, std::span<const std::byte> payload_dev,
                          std::byte* dst_dev, std::uint64_t elements, Sink sink, const DecodeOptions& options,
                          std::span<std::byte> workspace_dev, std::uint64_t* verdict_dev, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(check_call(spec, dtype, elements, options.framing, workspace_dev));
  const bool is_float = core::is_compressible(dtype);
  if (is_float && sink != sink_of(dtype) && element_bytes(sink) != sizeof(float)) {
    return invalid("elements are decoded to their own dtype or to float32");
  }
  if (!is_aligned_to(dst_dev, is_float ? element_bytes(sink) : core::size_of(dtype))) {
    return invalid("dst is not aligned to its elements");
  }

  const PayloadPlan plan = make_plan(spec, dtype, elements, options.framing);
  const Workspace workspace = cut_workspace(plan, workspace_dev.data());
  const bool has_checksums = options.checksums == Checksums::Device;
  const bool has_stage = spec.entropy != Entropy::None;
  const FindArgs find{words(payload_dev.data()),
                      payload_dev.size(),
                      plan,
                      workspace,
                      header_of(spec, dtype),
                      header_of(CodecSpec{}, dtype),
                      spec.has_rounding(),
                      has_checksums,
                      verdict_dev,
                      options.may_be_longer,
                      has_stage};
  const Decode args{find.payload, words(dst_dev), dtype,       sink,
                    plan,         workspace,      verdict_dev, has_stage ? workspace.shifted : nullptr};
  GEOCOMM_RETURN_IF_ERROR(find_frames(find, stream));
  if (has_checksums) {
    GEOCOMM_RETURN_IF_ERROR(sum_payload_crcs(find.payload, plan, workspace, verdict_dev, stream));
    GEOCOMM_RETURN_IF_ERROR(check_crcs(find, stream));
  }
  if (has_stage) {
    GEOCOMM_RETURN_IF_ERROR(decode_stage(args, stage_space(spec, plan, workspace_dev), stream));
  }
  if (spec.has_blocks()) GEOCOMM_RETURN_IF_ERROR(check_blocks(spec.id, args, stream));
  return decode_by_id(spec.id, args, stream);
}

Status to_status(std::uint64_t verdict) {
  if (verdict == 0) return Status::ok();
  const auto corrupt = [&](const char* what) {
    return Status(StatusCode::CorruptData, core::str("payload: frame ", frame_of(verdict), ": ", what));
  };
  switch (fault_of(verdict)) {
    case Fault::Version:
      return {StatusCode::VersionMismatch, core::str("payload: frame ", frame_of(verdict),
                                                     ": another format version; run the same version at "
                                                     "both ends")};
    case Fault::Truncated:
      return corrupt("truncated");
    case Fault::Magic:
      return corrupt("wrong magic");
    case Fault::HeaderCrc:
      return corrupt("wrong crc of the header");
    case Fault::Codec:
      return corrupt("another codec, dtype or block than was agreed upon");
    case Fault::Elements:
      return corrupt("another number of elements than expected");
    case Fault::Size:
      return corrupt("a payload size that its elements cannot have");
    case Fault::Trailing:
      return corrupt("bytes behind the last frame");
    case Fault::PayloadCrc:
      return corrupt("wrong crc of the payload");
    case Fault::Scale:
      return corrupt("a scale is out of range");
    case Fault::Code:
      return corrupt("a byte that no codes give");
    case Fault::RawSize:
      return corrupt("payload size and raw blocks contradict each other");
    case Fault::Plane:
      return corrupt("a Huffman plane that does not decode");
    case Fault::None:
      break;
  }
  return corrupt("unknown fault");
}

void seal_frame(std::span<std::byte> frame) {
  FrameHeader header;
  if (frame.size() < sizeof(header)) return;
  std::memcpy(&header, frame.data(), sizeof(header));
  header.payload_crc = core::crc32c(frame.subspan(sizeof(header)));
  header.header_crc =
      core::crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, header_crc)));
  std::memcpy(frame.data(), &header, sizeof(header));
}

}  // namespace geocomm::codec::cuda
