// Frames of None, Fp16 and Bf16 to elements; and elements that are only copied, into frames and out of them.
#include "codec/cuda/element_access.cuh"
#include "codec/cuda/element_tile.cuh"
#include "codec/cuda/kernels.h"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {
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

}  // namespace

core::Status copy_into_frames(const ElementEncode& args, Stream stream) {
  return launch(copy<true>, copy_grid(args.plan), stream, args.src, args.dst, args.plan,
                static_cast<const std::uint64_t*>(nullptr));
}

core::Status copy_out_of_frames(const Decode& args, Stream stream) {
  return launch(copy<false>, copy_grid(args.plan), stream, args.payload, args.dst, args.plan,
                static_cast<const std::uint64_t*>(args.verdict));
}

core::Status decode_elements(CodecId id, const Decode& args, Stream stream) {
  return launch_decode(id == CodecId::Fp16 ? core::DType::Float16 : core::DType::BFloat16, args, stream);
}

}  // namespace geocomm::codec::cuda
