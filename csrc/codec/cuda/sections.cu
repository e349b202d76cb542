// Sections of frames: through the stage and to their places, and back.
#include <algorithm>

#include "codec/cuda/codec_family.h"
#include "codec/cuda/huffman.cuh"

namespace geocomm::codec::cuda {

SectionSpace take_section_space(const SectionShape& shape, const PayloadPlan& plan, bool has_stage,
                                SpaceCutter& room) {
  SectionSpace space;
  std::uint32_t largest_plane = 0;
  std::uint64_t planes = 0;
  for (std::uint32_t s = 0; s < shape.count; ++s) {
    space.content_at[s] = static_cast<std::uint32_t>(space.bytes_per_frame);
    space.bytes_per_frame += SpaceCutter::aligned(shape.bytes[s]);
    if ((shape.planes >> s & 1u) == 0) continue;
    largest_plane = std::max(largest_plane, shape.bytes[s]);
    planes += plan.frames;
  }
  space.sections = room.take<Section>(std::uint64_t{plan.frames} * shape.count);
  space.contents = room.take<std::uint8_t>(plan.frames * space.bytes_per_frame);
  space.count = shape.count;
  space.planes = shape.planes;
  space.frames = plan.frames;
  space.has_stage = has_stage;
  if (has_stage) space.huffman = take_huffman_space(planes, largest_plane, shape.is_received, room);
  return space;
}

namespace {

constexpr unsigned kThreads = 256;
constexpr std::uint32_t kPieceBytes = 32768;  // that a block of threads copies at once

// The bytes [begin, end) of `from`, a piece at a time, of which this block takes every `stride`-th.
__device__ void copy_pieces(std::uint8_t* to, const std::uint8_t* from, std::uint64_t bytes,
                            std::uint64_t begin, std::uint64_t stride) {
  for (; begin < bytes; begin += stride) {
    const std::uint64_t left = bytes - begin;
    copy_bytes(to + begin, from + begin, static_cast<std::uint32_t>(left < kPieceBytes ? left : kPieceBytes),
               threadIdx.x, kThreads);
  }
}

// Sections as they are, and whole frames of None where there is no residual; says where coded planes go.
__global__ void __launch_bounds__(kThreads)
    copy_sections(ElementEncode args, SectionSpace space, std::uint32_t pieces_per_section) {
  const std::uint64_t jobs = std::uint64_t{space.frames} * space.count * pieces_per_section;
  const std::uint64_t stride = std::uint64_t{pieces_per_section} * kPieceBytes;
  for (std::uint64_t job = blockIdx.x; job < jobs; job += gridDim.x) {
    const std::uint64_t begin = job % pieces_per_section * kPieceBytes;
    const auto s = static_cast<std::uint32_t>(job / pieces_per_section % space.count);
    const std::uint64_t frame = job / pieces_per_section / space.count;
    const FrameRecord& record = args.workspace.records[frame];
    std::uint8_t* payload = args.placed(frame) + sizeof(FrameHeader);
    const Section& section = space.section(frame, s);
    const bool is_staged = space.is_staged(s);
    if (is_staged && begin == 0 && threadIdx.x == 0) {
      HuffmanPlane& plane = space.huffman.planes[space.plane(frame, s)];
      plane.to = payload + section.at;
      if (record.is_plain != 0) plane.bytes = 0;
    }
    if (record.is_plain != 0) {
      // The sections' blocks share the work.
      const std::uint64_t own = begin + s * stride;
      if (args.residual.data == nullptr) {
        copy_pieces(payload, args.elements(frame), record.payload_bytes, own, stride * space.count);
      }
    } else if (!is_staged && section.content != nullptr) {
      copy_pieces(payload + section.at, section.content, section.bytes, begin, stride);
    }
  }
}

// Of the planes of the sections [first, end), which lie side by side.
HuffmanSpace part_of(const SectionSpace& space, std::uint32_t first, std::uint32_t end) {
  HuffmanSpace part = space.huffman;
  std::uint32_t planes = 0;
  for (std::uint32_t s = first; s < end; ++s) planes += space.planes >> s & 1u;
  const std::uint64_t before = space.plane(0, first);
  part.planes += before;
  part.blocks += part.slot(before, 0);
  part.plane_count = planes * space.frames;
  return part;
}

}  // namespace

core::Status place_sections(const EncodeRun& run, const SectionSpace& space, PlainFrames plain) {
  const ElementEncode& input = run.input;
  if (space.has_stage) GEOCOMM_RETURN_IF_ERROR(encode_huffman_blocks(space.huffman, run.stream));
  LayoutArgs layout = run.layout(FrameSizes::Sections);
  layout.sections = space;
  layout.must_shrink = plain == PlainFrames::NamedOrLonger;
  GEOCOMM_RETURN_IF_ERROR(lay_out_frames(layout, run.stream));
  const std::uint64_t per_section = space.bytes_per_frame / space.count;
  const auto pieces = static_cast<std::uint32_t>(per_section / kPieceBytes + 1);
  const std::uint64_t jobs = std::uint64_t{space.frames} * space.count * pieces;
  GEOCOMM_RETURN_IF_ERROR(
      launch(copy_sections, Grid{persistent_blocks(jobs, 8), kThreads}, run.stream, input, space, pieces));
  if (space.has_stage) GEOCOMM_RETURN_IF_ERROR(write_huffman_planes(space.huffman, run.stream));
  const bool may_lose = plain != PlainFrames::None && input.residual.data != nullptr;
  return may_lose ? write_plain_sums(run.dtype, input, run.stream) : core::Status::ok();
}

core::Status decode_sections(const DecodeRun& run, const SectionSpace& space, std::uint32_t first,
                             std::uint32_t end) {
  if (!space.has_stage) return core::Status::ok();
  return decode_huffman_planes(part_of(space, first, end), run.args.verdict, run.stream);
}

}  // namespace geocomm::codec::cuda
