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

// What all calls ask of their caller.
Status check_call(const CodecSpec& spec, DType dtype, std::span<const std::byte> workspace,
                  std::size_t workspace_needed) {
  if (!is_supported(spec, dtype)) {
    return {StatusCode::Unsupported,
            core::str("CUDA codec: no kernels for codec ", spec.to_string(), " of ", core::to_string(dtype))};
  }
  if (spec.has_blocks() && !is_valid_block(spec.block)) return invalid("block out of range");
  if (!is_aligned_to(workspace.data(), kAlignment)) {
    return invalid("the workspace is not aligned to 16 bytes");
  }
  if (workspace.size() < workspace_needed) {
    return {StatusCode::InvalidArgument, core::str("CUDA codec: a workspace of ", workspace.size(),
                                                   " bytes, ", workspace_needed, " are needed")};
  }
  return Status::ok();
}

Status check_payload(const CodecSpec& spec, DType dtype, std::uint64_t elements, Framing framing,
                     std::span<const std::byte> workspace) {
  if (framing == Framing::SingleFrame && elements > kMaxFrameElements) {
    return invalid("more elements than a frame can have");
  }
  if (elements / (kPayloadFrameBytes / core::size_of(dtype)) >= std::uint64_t{1} << 31) {
    return invalid("more frames than a payload can have");
  }
  return check_call(spec, dtype, workspace,
                    is_supported(spec, dtype) ? workspace_bytes(spec, dtype, elements, framing) : 0);
}

Status check_residual(DType dtype, DType kept, float decay) {
  if (!core::is_compressible(dtype)) {
    return {StatusCode::Unsupported, core::str("CUDA codec: no residual for ", core::to_string(dtype))};
  }
  if (kept != DType::Float32 && kept != DType::BFloat16) return invalid("a residual is float32 or bfloat16");
  return std::isfinite(decay) ? Status::ok() : invalid("the decay of the residual is not finite");
}

Status check_feedback(const ErrorFeedback& feedback, DType dtype, std::uint64_t elements) {
  if (!feedback.is_on()) return Status::ok();
  GEOCOMM_RETURN_IF_ERROR(check_residual(dtype, feedback.dtype, feedback.decay));
  if (feedback.elements != elements) return invalid("the residual has not as many elements as the input");
  if (!is_aligned_to(feedback.residual, core::size_of(feedback.dtype))) {
    return invalid("the residual is not aligned to its elements");
  }
  return Status::ok();
}

Status check_sink(DType dtype, Sink sink) {
  if (core::is_compressible(dtype) && sink != sink_of(dtype) && element_bytes(sink) != sizeof(float)) {
    return invalid("elements are decoded to their own dtype or to float32");
  }
  return Status::ok();
}

// Bytes of an element where it is decoded to.
std::uint32_t target_bytes(DType dtype, Sink sink) {
  return static_cast<std::uint32_t>(core::is_compressible(dtype) ? element_bytes(sink)
                                                                 : core::size_of(dtype));
}

FrameHeader header_of(const CodecSpec& spec, DType dtype) {
  std::byte bytes[sizeof(FrameHeader)];
  write_frame_header(spec, dtype, 0, 0, 0, bytes);
  FrameHeader header;
  std::memcpy(&header, bytes, sizeof(header));
  header.header_crc = 0;
  return header;
}

FrameHeaders headers_of(const CodecSpec& spec, DType dtype, Checksums checksums) {
  return {header_of(spec, dtype), header_of(CodecSpec{}, dtype), checksums == Checksums::Device};
}

// The records are cleared.
Status encode_cleared(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  GEOCOMM_RETURN_IF_ERROR(family_of(run.spec).encode(run));
  if (run.headers.come_with_layout(input.plan)) return Status::ok();
  if (run.headers.with_checksums) {
    GEOCOMM_RETURN_IF_ERROR(sum_payload_crcs(input.dst, input.plan, input.workspace, nullptr, run.stream));
  }
  return write_headers(input.dst, input.plan, input.workspace, run.headers, run.stream);
}

// A batch as the kernels see it.
struct BatchParts {
  PayloadPlan plan;
  Workspace workspace;
  FrameSlot* table;
};

std::uint64_t largest_of(const Batch& batch) {
  std::uint64_t largest = 0;
  for (const BatchFrame& frame : batch.frames) largest = std::max(largest, frame.elements);
  return largest;
}

std::size_t room_bytes(const CodecSpec& spec, DType dtype, const PayloadPlan& plan, Direction direction) {
  SpaceCutter room;
  family_of(spec).take_room(spec, dtype, plan, direction, room);
  return room.bytes();
}

PayloadPlan plan_of_batch(const CodecSpec& spec, DType dtype, std::uint64_t largest, std::size_t frames,
                          std::byte* workspace_dev) {
  PayloadPlan plan = make_batch_plan(spec, dtype, largest, static_cast<std::uint32_t>(frames));
  plan.slots = cut_workspace(plan, true, workspace_dev).slots;
  return plan;
}

Status check_shape(const Batch& batch, bool is_received) {
  if (batch.frames.empty() || batch.frames.size() >= std::size_t{1} << 31) {
    return invalid("a batch of no or too many frames");
  }
  const std::uint64_t largest = largest_of(batch);
  if (largest > kMaxFrameElements) return invalid("more elements than a frame can have");
  const bool is_known = is_supported(batch.spec, batch.dtype);
  return check_call(
      batch.spec, batch.dtype, batch.workspace_dev,
      is_known ? batch_workspace_bytes(batch.spec, batch.dtype, largest, batch.frames.size(), is_received)
               : 0);
}

BatchParts parts_of(const Batch& batch) {
  BatchParts parts{};
  parts.plan = plan_of_batch(batch.spec, batch.dtype, largest_of(batch), batch.frames.size(),
                             batch.workspace_dev.data());
  parts.workspace = cut_workspace(parts.plan, true, batch.workspace_dev.data());
  parts.table = reinterpret_cast<FrameSlot*>(batch.table.data());
  return parts;
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
  return bytes_of_records(plan, false) + std::max(room_bytes(spec, dtype, plan, Direction::Encode),
                                                  room_bytes(spec, dtype, plan, Direction::Decode));
}

std::size_t batch_table_bytes(std::size_t frames) {
  return frames * sizeof(FrameSlot);
}

std::size_t batch_tiles(std::uint64_t largest, std::size_t frames) {
  return frames * std::max<std::uint64_t>((largest + kFeedbackTile - 1) / kFeedbackTile, 1);
}

std::size_t batch_workspace_bytes(const CodecSpec& spec, DType dtype, std::uint64_t largest,
                                  std::size_t frames, bool is_received) {
  const PayloadPlan plan = plan_of_batch(spec, dtype, largest, frames, nullptr);
  return bytes_of_records(plan, true) +
         room_bytes(spec, dtype, plan, is_received ? Direction::Decode : Direction::Encode);
}

Status compress_payload(const CodecSpec& spec, DType dtype, const std::byte* src_dev, std::uint64_t elements,
                        std::span<std::byte> dst_dev, const EncodeOptions& options,
                        std::span<std::byte> workspace_dev, std::uint64_t* bytes_out_dev, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(check_payload(spec, dtype, elements, options.framing, workspace_dev));
  GEOCOMM_RETURN_IF_ERROR(check_feedback(options.feedback, dtype, elements));
  if (!is_aligned_to(src_dev, core::size_of(dtype))) return invalid("src is not aligned to its elements");
  if (!is_aligned_to(dst_dev.data(), kAlignment)) return invalid("dst is not aligned to 16 bytes");
  if (const std::size_t bound = encoded_bound(spec, dtype, elements, options.framing);
      dst_dev.size() < bound) {
    return {StatusCode::OutputTooSmall, core::str("CUDA codec: the payload may take ", bound,
                                                  " bytes, dst has room for ", dst_dev.size())};
  }

  const PayloadPlan plan = make_plan(spec, dtype, elements, options.framing);
  const ResidualView residual{words(options.feedback.residual), options.feedback.dtype == DType::BFloat16,
                              options.feedback.decay};
  const Workspace workspace = cut_workspace(plan, false, workspace_dev.data());
  GEOCOMM_RETURN_IF_ERROR(clear_records(plan, workspace, nullptr, stream));
  return encode_cleared({spec,
                         dtype,
                         {words(src_dev), words(dst_dev.data()), residual, plan, workspace},
                         options.seed,
                         options.first_element,
                         headers_of(spec, dtype, options.checksums),
                         bytes_out_dev,
                         stream});
}

Status decompress_payload(const CodecSpec& spec, DType dtype, std::span<const std::byte> payload_dev,
                          std::byte* dst_dev, std::uint64_t elements, Sink sink, const DecodeOptions& options,
                          std::span<std::byte> workspace_dev, std::uint64_t* verdict_dev, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(check_payload(spec, dtype, elements, options.framing, workspace_dev));
  GEOCOMM_RETURN_IF_ERROR(check_sink(dtype, sink));
  if (!is_aligned_to(dst_dev, target_bytes(dtype, sink)))
    return invalid("dst is not aligned to its elements");

  const PayloadPlan plan = make_plan(spec, dtype, elements, options.framing);
  const Workspace workspace = cut_workspace(plan, false, workspace_dev.data());
  const FindArgs find{words(payload_dev.data()),
                      payload_dev.size(),
                      nullptr,
                      plan,
                      workspace,
                      headers_of(spec, dtype, options.checksums),
                      spec.has_rounding(),
                      verdict_dev,
                      options.may_be_longer};
  GEOCOMM_RETURN_IF_ERROR(find_frames(find, stream));
  if (find.headers.with_checksums) {
    GEOCOMM_RETURN_IF_ERROR(sum_payload_crcs(find.payload, plan, workspace, verdict_dev, stream));
    GEOCOMM_RETURN_IF_ERROR(check_crcs(find, stream));
  }
  const Decode args{
      find.payload, words(dst_dev), target_bytes(dtype, sink), dtype, sink, plan, workspace, verdict_dev,
      nullptr,      nullptr};
  const DecodeRun run{spec, args, stream};
  GEOCOMM_RETURN_IF_ERROR(family_of(spec).check(run));
  return family_of(spec).put(run);
}

// The table, as the first kernel of a call finds it.
Status write_table(const Batch& batch) {
  if (!is_aligned_to(batch.table.data(), kAlignment)) return invalid("the table is not aligned to 16 bytes");
  if (batch.table.size() < batch_table_bytes(batch.frames.size())) return invalid("the table is too small");
  auto* const table = reinterpret_cast<FrameSlot*>(batch.table.data());
  FrameExtent extent{};
  for (std::size_t f = 0; f < batch.frames.size(); ++f) {
    const BatchFrame& frame = batch.frames[f];
    if (f == 0 || frame.elements != extent.elements) {
      extent = extent_of(batch.spec, batch.dtype, frame.elements);
    }
    table[f] = {words(frame.elements_dev), words(frame.frame.data()),
                words(frame.residual_dev), words(frame.previous_dev),
                words(frame.scale_dev),    words(frame.outside),
                frame.frame.size(),        frame.seed,
                frame.first_element,       extent};
  }
  return Status::ok();
}

void place_frame(const Batch& batch, std::size_t index, std::span<const std::byte> frame) {
  FrameSlot& slot = reinterpret_cast<FrameSlot*>(batch.table.data())[index];
  slot.frame = const_cast<std::uint8_t*>(words(frame.data()));
  slot.room = frame.size();
}

Status compress_batch(const Batch& batch, const BatchFeedback& feedback, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(check_shape(batch, false));
  const bool has_residuals = batch.frames.front().residual_dev != nullptr;
  const bool enters = feedback.squares_dev != nullptr;
  const bool goes_outside = batch.frames.front().outside != nullptr;
  if (has_residuals) GEOCOMM_RETURN_IF_ERROR(check_residual(batch.dtype, feedback.dtype, feedback.decay));
  if (enters && (!has_residuals || feedback.dtype != DType::Float32)) {
    return invalid("squares are those of a batch with residuals of float32");
  }
  for (const BatchFrame& frame : batch.frames) {
    if (!is_aligned_to(frame.elements_dev, core::size_of(batch.dtype))) {
      return invalid("elements of a batch are not aligned to their size");
    }
    if (!is_aligned_to(frame.frame.data(), kAlignment)) {
      return invalid("a frame of a batch is not aligned to 16 bytes");
    }
    if (frame.frame.size() < compress_bound(batch.spec, batch.dtype, frame.elements)) {
      return {StatusCode::OutputTooSmall, "CUDA codec: a frame of a batch may take more bytes than it has"};
    }
    if ((frame.residual_dev != nullptr) != has_residuals) {
      return invalid("some frames of a batch have residuals and some have not");
    }
    if (!is_aligned_to(frame.residual_dev, core::size_of(feedback.dtype)) ||
        !is_aligned_to(frame.previous_dev, sizeof(float)) || !is_aligned_to(frame.scale_dev, sizeof(float))) {
      return invalid("a residual is not aligned to its elements");
    }
    if ((frame.previous_dev != nullptr) != enters || (frame.scale_dev != nullptr && !enters)) {
      return invalid("some frames of a batch have a residual that begins apart and some have not");
    }
    if ((frame.outside != nullptr) != goes_outside || !is_aligned_to(frame.outside, kAlignment)) {
      return invalid("some frames of a batch go to aligned memory outside and some do not");
    }
  }

  const BatchParts parts = parts_of(batch);
  GEOCOMM_RETURN_IF_ERROR(write_table(batch));
  const ResidualView residual{words(batch.frames.front().residual_dev), feedback.dtype == DType::BFloat16,
                              feedback.decay};
  GEOCOMM_RETURN_IF_ERROR(enters
                              ? enter_feedback(batch.dtype,
                                               {parts.plan, parts.workspace, parts.table, feedback.decay,
                                                feedback.scales_elements,
                                                static_cast<std::uint32_t>(batch_tiles(largest_of(batch), 1)),
                                                feedback.squares_dev, feedback.cleared_dev},
                                               stream)
                              : clear_records(parts.plan, parts.workspace, parts.table, stream));
  GEOCOMM_RETURN_IF_ERROR(encode_cleared({batch.spec,
                                          batch.dtype,
                                          {nullptr, nullptr, residual, parts.plan, parts.workspace},
                                          0,
                                          0,
                                          headers_of(batch.spec, batch.dtype, Checksums::Host),
                                          nullptr,
                                          stream}));
  return goes_outside ? copy_frames_outside(parts.plan, parts.workspace, stream) : Status::ok();
}

namespace {

// What both steps of decoding hand to their kernels.
Decode decode_args(const Batch& batch, const BatchParts& parts, Sink sink, std::uint64_t* verdict_dev) {
  return {nullptr,         nullptr,     target_bytes(batch.dtype, sink),
          batch.dtype,     sink,        parts.plan,
          parts.workspace, verdict_dev, nullptr,
          nullptr};
}

}  // namespace

Status check_batch(const Batch& batch, std::uint64_t* verdict_dev, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(check_shape(batch, true));
  const BatchParts parts = parts_of(batch);
  const FindArgs find{nullptr,
                      0,
                      parts.table,
                      parts.plan,
                      parts.workspace,
                      headers_of(batch.spec, batch.dtype, Checksums::Host),
                      batch.spec.has_rounding(),
                      verdict_dev,
                      true};
  GEOCOMM_RETURN_IF_ERROR(find_frames(find, stream));
  const Sink any = core::is_compressible(batch.dtype) ? sink_of(batch.dtype) : Sink::Float32;
  return family_of(batch.spec).check({batch.spec, decode_args(batch, parts, any, verdict_dev), stream});
}

Status put_batch(const Batch& batch, std::size_t first, std::size_t count, Sink sink,
                 std::uint64_t* verdict_dev, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(check_shape(batch, true));
  GEOCOMM_RETURN_IF_ERROR(check_sink(batch.dtype, sink));
  if (first > batch.frames.size() || count > batch.frames.size() - first) {
    return invalid("a part of a batch that it does not have");
  }
  if (count == 0) return Status::ok();
  for (const BatchFrame& frame : std::span(batch.frames).subspan(first, count)) {
    if (!is_aligned_to(frame.elements_dev, target_bytes(batch.dtype, sink))) {
      return invalid("elements of a batch are not aligned to their size");
    }
  }
  return family_of(batch.spec)
      .put({batch.spec, decode_args(batch, parts_of(batch), sink, verdict_dev), stream,
            static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)});
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
