// None; Fp16 and Bf16 without a stage: elements to frames, and back.
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/codec_family.h"
#include "codec/cuda/device.h"
#include "codec/cuda/elements.cuh"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {

// Frames of None, Fp16 and Bf16: elements one by one. A cast's frame in which a finite value would become Inf
// becomes one of None.

namespace {

// Stores values in a 16-bit format or as floats, and keeps what that lost.
template <core::DType kFormat, bool kFeedback>
__device__ void encode_quad(const ResidualView& residual, std::uint8_t* payload, std::uint32_t at,
                            const Quad& values, unsigned count) {
  store_quad<kFormat>(payload + std::uint64_t{at} * kElementBytes<kFormat>, values, count, true);
  if constexpr (kFeedback) {
    Quad decoded = values;
    if constexpr (kFormat != core::DType::Float32) {
#pragma unroll
      for (int c = 0; c < 4; ++c) decoded.v[c] = widen<kFormat>(narrow_saturated<kFormat>(values.v[c]));
    }
    store_residual(residual, at, values, decoded, count);
  }
}

template <typename Word>
__device__ void copy_elements(const std::uint8_t* src, std::uint8_t* payload, std::uint32_t at,
                              unsigned count) {
  for (unsigned c = 0; c < count; ++c) {
    reinterpret_cast<Word*>(payload)[at + c] = reinterpret_cast<const Word*>(src)[at + c];
  }
}

template <core::DType kType, core::DType kFormat, bool kFeedback>
__global__ void __launch_bounds__(kElementThreads) encode_cast(ElementEncode args, CastPass pass) {
  const bool placed = pass == CastPass::Placed;
  if (placed && !kFeedback && args.workspace.state->irregular == 0) return;
  const ElementTile tile = find_tile(args.plan);
  FrameRecord& record = args.workspace.records[tile.frame];
  const std::uint8_t* src = args.elements(tile.frame);
  const ResidualView residual = args.residual_of(tile.frame);
  std::uint8_t* payload = (placed ? args.placed(tile.frame) : args.regular(tile.frame)) + sizeof(FrameHeader);

  Quad values[kElementRounds];
  bool fit = true;
#pragma unroll
  for (unsigned round = 0; round < kElementRounds; ++round) {
    values[round] = load_values<kType, kFeedback>(src, residual, tile.at(round), tile.count(round));
    fit = fit && all_fit<kFormat>(values[round]);
  }
  if (!placed && !fit) {
    record.raw_elements = 1;
    args.workspace.state->irregular = 1;
  }
  if (pass == CastPass::Check) return;
#pragma unroll
  for (unsigned round = 0; round < kElementRounds; ++round) {
    const std::uint32_t at = tile.at(round);
    const unsigned count = tile.count(round);
    if (!placed || record.is_plain == 0) {
      encode_quad<kFormat, kFeedback>(residual, payload, at, values[round], count);
    } else if constexpr (kFeedback) {
      encode_quad<kType, true>(residual, payload, at, values[round], count);
    } else if constexpr (kType == core::DType::Float32) {
      copy_elements<std::uint32_t>(src, payload, at, count);
    } else {
      copy_elements<std::uint16_t>(src, payload, at, count);
    }
  }
}

template <core::DType kType>
__global__ void __launch_bounds__(kElementThreads) encode_plain(ElementEncode args) {
  const ElementTile tile = find_tile(args.plan);
  const std::uint8_t* src = args.elements(tile.frame);
  const ResidualView residual = args.residual_of(tile.frame);
  std::uint8_t* payload = args.regular(tile.frame) + sizeof(FrameHeader);
#pragma unroll
  for (unsigned round = 0; round < kElementRounds; ++round) {
    const std::uint32_t at = tile.at(round);
    const unsigned count = tile.count(round);
    const Quad values = load_values<kType, true>(src, residual, at, count);
    encode_quad<kType, true>(residual, payload, at, values, count);
  }
}

template <core::DType kType>
__global__ void __launch_bounds__(kElementThreads) encode_plain_among_others(ElementEncode args) {
  const ElementTile tile = find_tile(args.plan);
  const FrameRecord& record = args.workspace.records[tile.frame];
  if (record.is_plain == 0) return;
  const std::uint8_t* src = args.elements(tile.frame);
  const ResidualView residual = args.residual_of(tile.frame);
  std::uint8_t* payload = args.placed(tile.frame) + sizeof(FrameHeader);
  for (unsigned round = 0; round < kElementRounds; ++round) {
    const std::uint32_t at = tile.at(round);
    write_plain<kType, true>(src, residual, at, tile.count(round),
                             payload + std::uint64_t{at} * kElementBytes<kType>);
  }
}

}  // namespace

core::Status encode_casts(CodecId id, core::DType dtype, CastPass pass, const ElementEncode& args,
                          Stream stream) {
  const Grid grid = grid_of_tiles(args.plan);
  return with_values(dtype, args.residual, [&]<core::DType kType, bool kFeedback>() {
    return id == CodecId::Fp16
               ? launch(encode_cast<kType, core::DType::Float16, kFeedback>, grid, stream, args, pass)
               : launch(encode_cast<kType, core::DType::BFloat16, kFeedback>, grid, stream, args, pass);
  });
}

core::Status write_plain_sums(core::DType dtype, const ElementEncode& args, Stream stream) {
  return with_compressible(dtype, [&]<core::DType kType>() {
    return launch(encode_plain_among_others<kType>, grid_of_tiles(args.plan), stream, args);
  });
}

// Frames of None, Fp16 and Bf16 to elements; and elements that are only copied, into frames and out of them.

namespace {

// Of a copy.
constexpr unsigned kUnit = 16;
constexpr std::uint64_t kTileBytes = std::uint64_t{kElementThreads} * kElementRounds * kUnit;
static_assert(kPayloadFrameBytes % kTileBytes == 0);

// `format`: of the frames that are not of None.
template <Sink kSink>
__global__ void __launch_bounds__(kElementThreads) decode(Decode args, core::DType format) {
  if (is_over_for_thread(args.verdict)) return;
  const ElementTile tile = find_tile(args.plan);
  const FrameRecord& record = args.workspace.records[tile.frame];
  const std::uint8_t* payload = args.payload_of(tile.frame);
  std::uint8_t* dst = args.elements(tile.frame);
  for (unsigned round = 0; round < kElementRounds; ++round) {
    const std::uint64_t at = tile.at(round);
    const unsigned count = tile.count(round);
    if (count == 0) return;
    if (record.is_plain != 0) {
      put_plain<kSink>(args.dtype, payload + at * args.plan.element_bytes, dst, at, count);
    } else {
      const Quad values = format == core::DType::Float16
                              ? load_received<core::DType::Float16>(payload + at * 2, count)
                              : load_received<core::DType::BFloat16>(payload + at * 2, count);
      put_quad<kSink>(dst, at, values, count);
    }
  }
}

// Frames of None: bytes from where they are to where they belong.
template <bool kIntoFrames>
__global__ void __launch_bounds__(kElementThreads)
    copy(const std::uint8_t* from, std::uint8_t* to, PayloadPlan plan, const std::uint64_t* verdict) {
  if (verdict != nullptr && is_over_for_thread(verdict)) return;
  const std::uint64_t tile = blockIdx.x * kTileBytes;
  const std::uint32_t index = plan.frame_of_element(tile / plan.element_bytes);
  const std::uint64_t begin = tile - index * plan.frame_elements * plan.element_bytes;
  const std::uint32_t frame = plan.first_frame + index;
  const std::uint64_t end = plan.extent(frame).bytes;
  const std::uint64_t regular = frame * plan.frame_stride;
  if constexpr (kIntoFrames) {
    from = plan.elements_at(from, plan.element_bytes, frame);
    to = plan.frame_at(to, regular, frame) + sizeof(FrameHeader);
  } else {
    from = plan.frame_at(from, regular, frame) + sizeof(FrameHeader);
    to = plan.elements_at(to, plan.element_bytes, frame);
  }
#pragma unroll
  for (unsigned round = 0; round < kElementRounds; ++round) {
    const std::uint64_t at = begin + (round * kElementThreads + threadIdx.x) * std::uint64_t{kUnit};
    if (at >= end) return;
    if (end - at >= kUnit && is_aligned(from, kUnit) && is_aligned(to, kUnit)) {
      *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
    } else {
      for (std::uint64_t i = at; i < end && i < at + kUnit; ++i) to[i] = from[i];
    }
  }
}

core::Status launch_decode(core::DType format, const Decode& args, Stream stream) {
  return with_sink(args.sink, [&]<Sink kSink>() {
    return launch(decode<kSink>, grid_of_tiles(args.plan), stream, args, format);
  });
}

Grid copy_grid(const PayloadPlan& plan) {
  return {(plan.elements * plan.element_bytes + kTileBytes - 1) / kTileBytes, kElementThreads};
}

// Only copied.
core::Status copy_into_frames(const ElementEncode& args, Stream stream) {
  return launch(copy<true>, copy_grid(args.plan), stream, args.src, args.dst, args.plan,
                static_cast<const std::uint64_t*>(nullptr));
}

core::Status copy_out_of_frames(const Decode& args, Stream stream) {
  return launch(copy<false>, copy_grid(args.plan), stream, args.payload, args.dst, args.plan,
                static_cast<const std::uint64_t*>(args.verdict));
}

// Elements with their residual added.
core::Status encode_plain_sums(core::DType dtype, const ElementEncode& args, Stream stream) {
  return with_compressible(dtype, [&]<core::DType kType>() {
    return launch(encode_plain<kType>, grid_of_tiles(args.plan), stream, args);
  });
}

void take_room(const CodecSpec&, core::DType, const PayloadPlan&, Direction, SpaceCutter&) {}

core::Status encode(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  const bool has_residual = input.residual.data != nullptr;
  if (run.spec.id == CodecId::None) {
    GEOCOMM_RETURN_IF_ERROR(has_residual ? encode_plain_sums(run.dtype, input, run.stream)
                                         : copy_into_frames(input, run.stream));
    return lay_out_frames(run.layout(FrameSizes::Blocks), run.stream);
  }
  // A frame that a cast cannot carry leaves the residual to its frame of None, so with a residual the check
  // comes first. Without one the encoder checks on the way, and runs again in the rare case.
  const CastPass first = has_residual ? CastPass::Check : CastPass::Regular;
  GEOCOMM_RETURN_IF_ERROR(encode_casts(run.spec.id, run.dtype, first, input, run.stream));
  GEOCOMM_RETURN_IF_ERROR(lay_out_frames(run.layout(FrameSizes::Casts), run.stream));
  return encode_casts(run.spec.id, run.dtype, CastPass::Placed, input, run.stream);
}

// The headers say all.
core::Status check(const DecodeRun&) {
  return core::Status::ok();
}

core::Status put(const DecodeRun& run) {
  const Decode args = run.part();
  if (run.spec.id == CodecId::None &&
      (!core::is_compressible(args.dtype) || args.sink == sink_of(args.dtype))) {
    return copy_out_of_frames(args, run.stream);
  }
  return launch_decode(run.spec.id == CodecId::Fp16 ? core::DType::Float16 : core::DType::BFloat16, args,
                       run.stream);
}

}  // namespace

const CodecFamily kElementFamily{true, false, take_room, encode, check, put};

}  // namespace geocomm::codec::cuda
