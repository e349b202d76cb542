// Fp16 and Bf16 with a stage: the casts as words of 16 bits in two sections, of which the high bytes are a
// plane.
#include "codec/cuda/codec_family.h"
#include "codec/cuda/elements.cuh"
#include "codec/cuda/planes.cuh"
#include "codec/cuda/sections.cuh"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {
namespace {

enum CastSection : std::uint32_t { kHighBytes, kLowBytes, kCastSections };

constexpr unsigned kThreads = kElementThreads;

template <core::DType kType, core::DType kFormat, bool kFeedback>
__global__ void __launch_bounds__(kThreads) split(ElementEncode args, SectionSpace space) {
  const ElementTile tile = find_tile(args.plan);
  FrameRecord& record = args.workspace.records[tile.frame];
  if (kFeedback && record.raw_elements != 0) return;
  const std::uint8_t* src = args.elements(tile.frame);
  const ResidualView residual = args.residual_of(tile.frame);
  bool fit = true;
#pragma unroll
  for (unsigned round = 0; round < kElementRounds; ++round) {
    const std::uint32_t at = tile.at(round);
    const unsigned count = tile.count(round);
    if (count == 0) continue;
    const Quad values = load_values<kType, kFeedback>(src, residual, at, count);
    fit = fit && all_fit<kFormat>(values);
    Words words;
    Quad decoded;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const std::uint16_t bits = narrow<kFormat>(values.v[c]);
      words.w[c] = rotated_left(bits);
      decoded.v[c] = widen<kFormat>(bits);
    }
    *reinterpret_cast<std::uint32_t*>(space.content(tile.frame, kHighBytes) + at) = high_bytes(words);
    *reinterpret_cast<std::uint32_t*>(space.content(tile.frame, kLowBytes) + at) = low_bytes(words);
    if constexpr (kFeedback) store_residual(residual, at, values, decoded, count);
  }
  if (!kFeedback && !fit) record.raw_elements = 1;
}

__global__ void __launch_bounds__(kThreads)
    name_split(PayloadPlan plan, Workspace workspace, SectionSpace space) {
  const std::uint32_t frame = blockIdx.x * kThreads + threadIdx.x;
  if (frame >= plan.frames) return;
  FrameRecord& record = workspace.records[frame];
  record.is_plain = record.raw_elements != 0 ? 1 : 0;
  for (const std::uint32_t s : {kHighBytes, kLowBytes}) space.name(frame, s, plan.extent(frame).elements);
  name_planes(space, frame, record.is_plain != 0);
}

// A warp per frame.
__global__ void __launch_bounds__(kWarp) walk(Decode args, SectionSpace space) {
  const std::uint32_t frame = blockIdx.x;
  if (threadIdx.x < kCastSections) {
    space.section(frame, threadIdx.x).bytes = args.plan.extent(frame).elements;
  }
  __syncwarp();
  walk_sections(args, space, frame, kHighBytes, kCastSections);
}

template <core::DType kFormat, Sink kSink>
__global__ void __launch_bounds__(kThreads) join(Decode args, SectionSpace space) {
  if (is_over_for_thread(args.verdict)) return;
  const ElementTile tile = find_tile(args.plan);
  const bool is_plain = args.workspace.records[tile.frame].is_plain != 0;
  const std::uint8_t* payload = args.payload_of(tile.frame);
  std::uint8_t* dst = args.elements(tile.frame);
  const std::uint8_t* high = space.section(tile.frame, kHighBytes).content;
  const std::uint8_t* low = space.section(tile.frame, kLowBytes).content;
  for (unsigned round = 0; round < kElementRounds; ++round) {
    const std::uint32_t at = tile.at(round);
    const unsigned count = tile.count(round);
    if (count == 0) return;
    if (is_plain) {
      put_plain<kSink>(args.dtype, payload + std::uint64_t{at} * args.plan.element_bytes, dst, at, count);
      continue;
    }
    const std::uint32_t four_high = load_bytes(high + at, count);
    const std::uint32_t four_low = load_bytes(low + at, count);
    Quad values;
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      values.v[c] =
          widen<kFormat>(static_cast<std::uint16_t>(rotated_right(word_of(four_high, four_low, c))));
    }
    put_quad<kSink>(dst, at, values, count);
  }
}

template <core::DType kFormat>
core::Status launch_split(core::DType dtype, const ElementEncode& args, const SectionSpace& space,
                          Stream stream) {
  return with_values(dtype, args.residual, [&]<core::DType kType, bool kFeedback>() {
    return launch(split<kType, kFormat, kFeedback>, grid_of_tiles(args.plan), stream, args, space);
  });
}

template <core::DType kFormat>
core::Status launch_join(const Decode& args, const SectionSpace& space, Stream stream) {
  return with_sink(args.sink, [&]<Sink kSink>() {
    return launch(join<kFormat, kSink>, grid_of_tiles(args.plan), stream, args, space);
  });
}

// Encoding: both sections, and the residual. Frames that the cast cannot carry become ones of None: with a
// residual those that CastPass::Check has found, which are left out; else it finds them on the way.
core::Status split_casts(CodecId id, core::DType dtype, const ElementEncode& args, const SectionSpace& space,
                         Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(id == CodecId::Fp16
                              ? launch_split<core::DType::Float16>(dtype, args, space, stream)
                              : launch_split<core::DType::BFloat16>(dtype, args, space, stream));
  return launch(name_split, one_thread_each(args.plan.frames, kThreads), stream, args.plan, args.workspace,
                space);
}

// Decoding: finds both; elements, when both are there.
core::Status walk_cast_sections(const Decode& args, const SectionSpace& space, Stream stream) {
  return launch(walk, Grid{args.plan.frames, kWarp}, stream, args, space);
}

core::Status join_casts(CodecId id, const Decode& args, const SectionSpace& space, Stream stream) {
  return id == CodecId::Fp16 ? launch_join<core::DType::Float16>(args, space, stream)
                             : launch_join<core::DType::BFloat16>(args, space, stream);
}

SectionSpace space_of(const PayloadPlan& plan, Direction direction, SpaceCutter& room) {
  SectionShape shape{kCastSections, 1u << kHighBytes, {}};
  shape.is_received = direction == Direction::Decode;
  shape.bytes[kHighBytes] = plan.largest().elements;
  shape.bytes[kLowBytes] = plan.largest().elements;
  return take_section_space(shape, plan, true, room);
}

void take_room(const CodecSpec&, core::DType, const PayloadPlan& plan, Direction direction,
               SpaceCutter& room) {
  space_of(plan, direction, room);
}

core::Status encode(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  SpaceCutter room(input.workspace.room);
  const SectionSpace space = space_of(input.plan, Direction::Encode, room);
  // A frame that the cast cannot carry leaves the residual to its frame of None.
  if (input.residual.data != nullptr) {
    GEOCOMM_RETURN_IF_ERROR(encode_casts(run.spec.id, run.dtype, CastPass::Check, input, run.stream));
  }
  GEOCOMM_RETURN_IF_ERROR(split_casts(run.spec.id, run.dtype, input, space, run.stream));
  return place_sections(run, space, PlainFrames::Named);
}

core::Status check(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  const SectionSpace space = space_of(run.args.plan, Direction::Decode, room);
  GEOCOMM_RETURN_IF_ERROR(walk_cast_sections(run.args, space, run.stream));
  return decode_sections(run, space, kHighBytes, kCastSections);
}

core::Status put(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  return join_casts(run.spec.id, run.part(), space_of(run.args.plan, Direction::Decode, room), run.stream);
}

}  // namespace

const CodecFamily kCastPlaneFamily{false, true, take_room, encode, check, put};

}  // namespace geocomm::codec::cuda
