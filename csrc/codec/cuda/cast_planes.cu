#include "codec/cuda/byte_planes.cuh"
#include "codec/cuda/cast_planes.h"
#include "codec/cuda/cast_range.cuh"
#include "codec/cuda/element_access.cuh"

namespace geocomm::codec::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kRounds = 4;  // quads of a thread
constexpr unsigned kTile = kThreads * kRounds * 4;
static_assert(kPayloadFrameBytes / 4 % kTile == 0, "a tile lies in one frame");

Grid grid_of_tiles(const PayloadPlan& plan) {
  return {(plan.elements + kTile - 1) / kTile, kThreads};
}
Grid thread_per_frame(const PayloadPlan& plan) {
  return {(std::uint64_t{plan.frames} + kThreads - 1) / kThreads, kThreads};
}

template <core::DType kType, core::DType kFormat, bool kFeedback>
__global__ void __launch_bounds__(kThreads) split(ElementEncode args, SectionSpace space) {
  const std::uint64_t tile = std::uint64_t{blockIdx.x} * kTile;
  const std::uint32_t frame = args.plan.frame_of_element(tile);
  FrameRecord& record = args.workspace.records[frame];
  if (kFeedback && record.raw_elements != 0) return;
  const std::uint64_t first = frame * args.plan.frame_elements;
  const auto begin = static_cast<std::uint32_t>(tile - first);
  const std::uint32_t elements = args.plan.extent(frame).elements;
  bool fit = true;
#pragma unroll
  for (unsigned q = 0; q < kRounds; ++q) {
    const std::uint32_t at = begin + q * (kTile / kRounds) + 4 * threadIdx.x;
    if (at >= elements) continue;
    const unsigned count = elements - at < 4 ? elements - at : 4;
    const Quad values = load_values<kType, kFeedback>(args.src, args.residual, first + at, count);
    fit = fit && all_fit<kFormat>(values);
    Words words;
    Quad decoded;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const std::uint16_t bits = narrow<kFormat>(values.v[c]);
      words.w[c] = rotated_left(bits);
      decoded.v[c] = widen<kFormat>(bits);
    }
    *reinterpret_cast<std::uint32_t*>(space.content(frame, kHighBytes) + at) = high_bytes(words);
    *reinterpret_cast<std::uint32_t*>(space.content(frame, kLowBytes) + at) = low_bytes(words);
    if constexpr (kFeedback) store_residual(args.residual, first + at, values, decoded, count);
  }
  if (!kFeedback && !fit) record.raw_elements = 1;
}

__global__ void __launch_bounds__(kThreads)
    name_split(PayloadPlan plan, Workspace workspace, SectionSpace space) {
  const std::uint32_t frame = blockIdx.x * kThreads + threadIdx.x;
  if (frame >= plan.frames) return;
  FrameRecord& record = workspace.records[frame];
  record.is_plain = record.raw_elements != 0 ? 1 : 0;
  for (const std::uint32_t s : {kHighBytes, kLowBytes}) {
    space.section(frame, s) = {space.content(frame, s), plan.extent(frame).elements, 0, 0, 0};
  }
}

__global__ void __launch_bounds__(kThreads) name_received(PayloadPlan plan, SectionSpace space) {
  const std::uint32_t frame = blockIdx.x * kThreads + threadIdx.x;
  if (frame >= plan.frames) return;
  for (const std::uint32_t s : {kHighBytes, kLowBytes}) {
    space.section(frame, s).bytes = plan.extent(frame).elements;
  }
}

template <core::DType kFormat, Sink kSink>
__global__ void __launch_bounds__(kThreads) join(Decode args, SectionSpace space) {
  if (*args.verdict != 0) return;
  const std::uint64_t tile = std::uint64_t{blockIdx.x} * kTile;
  const std::uint32_t frame = args.plan.frame_of_element(tile);
  if (args.workspace.records[frame].is_plain != 0) return;
  const std::uint64_t first = frame * args.plan.frame_elements;
  const auto begin = static_cast<std::uint32_t>(tile - first);
  const std::uint32_t elements = args.plan.extent(frame).elements;
  const std::uint8_t* high = space.section(frame, kHighBytes).content;
  const std::uint8_t* low = space.section(frame, kLowBytes).content;
  for (unsigned q = 0; q < kRounds; ++q) {
    const std::uint32_t at = begin + q * (kTile / kRounds) + 4 * threadIdx.x;
    if (at >= elements) return;
    const unsigned count = elements - at < 4 ? elements - at : 4;
    const std::uint32_t four_high = load_bytes(high + at, count);
    const std::uint32_t four_low = load_bytes(low + at, count);
    Quad values;
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      values.v[c] =
          widen<kFormat>(static_cast<std::uint16_t>(rotated_right(word_of(four_high, four_low, c))));
    }
    put_quad<kSink>(args.dst, first + at, values, count);
  }
}

template <core::DType kFormat>
core::Status launch_split(core::DType dtype, const ElementEncode& args, const SectionSpace& space,
                          Stream stream) {
  const Grid grid = grid_of_tiles(args.plan);
  return with_compressible(dtype, [&]<core::DType kType>() {
    return args.residual.data != nullptr ? launch(split<kType, kFormat, true>, grid, stream, args, space)
                                         : launch(split<kType, kFormat, false>, grid, stream, args, space);
  });
}

template <core::DType kFormat>
core::Status launch_join(const Decode& args, const SectionSpace& space, Stream stream) {
  return with_sink(args.sink, [&]<Sink kSink>() {
    return launch(join<kFormat, kSink>, grid_of_tiles(args.plan), stream, args, space);
  });
}

}  // namespace

core::Status split_casts(CodecId id, core::DType dtype, const ElementEncode& args, const SectionSpace& space,
                         Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(id == CodecId::Fp16
                              ? launch_split<core::DType::Float16>(dtype, args, space, stream)
                              : launch_split<core::DType::BFloat16>(dtype, args, space, stream));
  return launch(name_split, thread_per_frame(args.plan), stream, args.plan, args.workspace, space);
}

core::Status name_cast_sections(const PayloadPlan& plan, const SectionSpace& space, Stream stream) {
  return launch(name_received, thread_per_frame(plan), stream, plan, space);
}

core::Status join_casts(CodecId id, const Decode& args, const SectionSpace& space, Stream stream) {
  return id == CodecId::Fp16 ? launch_join<core::DType::Float16>(args, space, stream)
                             : launch_join<core::DType::BFloat16>(args, space, stream);
}

}  // namespace geocomm::codec::cuda
