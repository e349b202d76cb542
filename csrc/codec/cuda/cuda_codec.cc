#include "codec/cuda/cuda_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "codec/cuda/codec_family.h"
#include "codec/cuda/kernels.h"
#include "codec/cuda/payload_plan.h"
#include "codec/cuda/verdict.h"
#include "codec/frames/frame.h"
#include "codec/payload/payload.h"
#include "core/str.h"

namespace geocomm::codec::cuda {
namespace {

using core::DType;
using core::Status;
using core::StatusCode;

constexpr std::size_t kAlignment = 16;

constexpr std::pair<Fault, const char*> kFaults[] = {
    {Fault::Truncated, "truncated"},
    {Fault::Magic, "wrong magic"},
    {Fault::HeaderCrc, "wrong crc of the header"},
    {Fault::Codec, "another codec, dtype or block than was agreed upon"},
    {Fault::Elements, "another number of elements than expected"},
    {Fault::Size, "a payload size that its elements cannot have"},
    {Fault::Trailing, "bytes behind the last frame"},
    {Fault::PayloadCrc, "wrong crc of the payload"},
    {Fault::Scale, "a scale is out of range"},
    {Fault::Code, "a byte that no codes give"},
    {Fault::RawSize, "payload size and raw blocks contradict each other"},
    {Fault::Plane, "a Huffman plane that does not decode"},
    {Fault::SectionSize, "payload size and the sizes of its parts contradict each other"},
    {Fault::Bitmap, "a bitmap with bits of elements that have no codes"},
    {Fault::TopKHead, "a head of topk that its elements cannot have"},
    {Fault::LocoHead, "a head of loco that no sender writes"},
    {Fault::Places, "places outside of the frame or not in order, or another number of them than said"}};

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

}  // namespace

const CodecFamily& family_of(const CodecSpec& spec) {
  switch (spec.id) {
    case CodecId::None:
      break;
    case CodecId::Fp16:
    case CodecId::Bf16:
      return spec.entropy == Entropy::None ? kElementFamily : kCastPlaneFamily;
    case CodecId::Int8:
    case CodecId::Int4:
    case CodecId::Bit2:
    case CodecId::Bit1:
      return kBlockFamily;
    case CodecId::DeadZone:
    case CodecId::BitPlanes:
      return kDeadZoneFamily;
    case CodecId::TopK:
      return kTopKFamily;
    case CodecId::Lossless:
      return kLosslessFamily;
    case CodecId::Loco:
      return kLocoFamily;
  }
  return kElementFamily;
}

bool is_supported(const CodecSpec& spec, DType dtype) {
  if (spec.id != CodecId::None && !core::is_compressible(dtype)) return false;
  const CodecFamily& family = family_of(spec);
  return (spec.entropy == Entropy::None && family.takes_no_stage) ||
         (spec.entropy == Entropy::Huffman && family.takes_huffman);
}

std::size_t encoded_bound(const CodecSpec& spec, DType dtype, std::uint64_t elements, Framing framing) {
  return framing == Framing::Payload ? payload_bound(spec, dtype, elements)
                                     : compress_bound(spec, dtype, elements);
}

std::size_t workspace_bytes(const CodecSpec& spec, DType dtype, std::uint64_t elements, Framing framing) {
  const PayloadPlan plan = make_plan(spec, dtype, elements, framing);
  return bytes_of_records(plan) + family_of(spec).room_bytes(spec, dtype, plan);
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
    return {StatusCode::OutputTooSmall, core::str("CUDA codec: the payload may take ", bound,
                                                  " bytes, dst has room for ", dst_dev.size())};
  }

  const PayloadPlan plan = make_plan(spec, dtype, elements, options.framing);
  const Workspace workspace = cut_workspace(plan, workspace_dev.data());
  const ResidualView residual{words(options.feedback.residual), options.feedback.dtype == DType::BFloat16,
                              options.feedback.decay};
  std::uint8_t* dst = words(dst_dev.data());
  const EncodeRun run{spec,
                      dtype,
                      {words(src_dev), dst, residual, plan, workspace},
                      options.seed,
                      options.first_element,
                      bytes_out_dev,
                      stream};
  GEOCOMM_RETURN_IF_ERROR(clear_records(plan, workspace, stream));
  GEOCOMM_RETURN_IF_ERROR(family_of(spec).encode(run));
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
  const FindArgs find{
      words(payload_dev.data()),     payload_dev.size(),  plan,          workspace,   header_of(spec, dtype),
      header_of(CodecSpec{}, dtype), spec.has_rounding(), has_checksums, verdict_dev, options.may_be_longer};
  GEOCOMM_RETURN_IF_ERROR(find_frames(find, stream));
  if (has_checksums) {
    GEOCOMM_RETURN_IF_ERROR(sum_payload_crcs(find.payload, plan, workspace, verdict_dev, stream));
    GEOCOMM_RETURN_IF_ERROR(check_crcs(find, stream));
  }
  const Decode args{find.payload, words(dst_dev), dtype, sink, plan, workspace, verdict_dev, nullptr};
  return family_of(spec).decode({spec, args, stream});
}

Status to_status(std::uint64_t verdict) {
  if (verdict == 0) return Status::ok();
  const Fault fault = fault_of(verdict);
  if (fault == Fault::Version) {
    return {StatusCode::VersionMismatch, core::str("payload: frame ", frame_of(verdict),
                                                   ": another format version; run the same version at "
                                                   "both ends")};
  }
  const auto* const known = std::ranges::find(kFaults, fault, &std::pair<Fault, const char*>::first);
  return core::corrupt("payload: frame ", frame_of(verdict), ": ",
                       known == std::end(kFaults) ? "unknown fault" : known->second);
}

}  // namespace geocomm::codec::cuda
