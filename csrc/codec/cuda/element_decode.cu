// Frames of None, Fp16 and Bf16 to elements; and elements that are only copied, into frames and out of them.
#include "codec/cuda/element_access.cuh"
#include "codec/cuda/kernels.h"

namespace geocomm::codec::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kRounds = 4;  // of a thread: quads of elements, or units of bytes
constexpr unsigned kUnit = 16;
constexpr unsigned kTile = kThreads * kRounds * 4;
constexpr std::uint64_t kTileBytes = std::uint64_t{kThreads} * kRounds * kUnit;
static_assert(kPayloadFrameBytes / 4 % kTile == 0 && kPayloadFrameBytes % kTileBytes == 0);

// `format`: of the frames that are not of None; Float32: these are not this kernel's.
template <Sink kSink>
__global__ void __launch_bounds__(kThreads) decode(Decode args, core::DType format) {
  if (*args.verdict != 0) return;
  const std::uint64_t tile = std::uint64_t{blockIdx.x} * kTile;
  const std::uint32_t frame = args.plan.frame_of_element(tile);
  const auto begin = static_cast<std::uint32_t>(tile - frame * args.plan.frame_elements);
  const std::uint32_t elements = args.plan.extent(frame).elements;
  const FrameRecord& record = args.workspace.records[frame];
  if (record.is_plain == 0 && format == core::DType::Float32) return;
  const std::uint8_t* payload = args.payload + record.offset + sizeof(FrameHeader);
  const std::uint64_t first = frame * args.plan.frame_elements;
  for (unsigned q = 0; q < kRounds; ++q) {
    const std::uint32_t at = begin + q * (kTile / kRounds) + 4 * threadIdx.x;
    if (at >= elements) return;
    const unsigned count = elements - at < 4 ? elements - at : 4;
    if (record.is_plain != 0) {
      put_plain<kSink>(args.dtype, payload + std::uint64_t{at} * args.plan.element_bytes, args.dst,
                       first + at, count);
    } else if (format == core::DType::Float16) {
      put_quad<kSink>(args.dst, first + at,
                      load_received<core::DType::Float16>(payload + std::uint64_t{at} * 2, count), count);
    } else {
      put_quad<kSink>(args.dst, first + at,
                      load_received<core::DType::BFloat16>(payload + std::uint64_t{at} * 2, count), count);
    }
  }
}

// Frames of None: bytes from where they are to where they belong.
template <bool kIntoFrames>
__global__ void __launch_bounds__(kThreads)
    copy(const std::uint8_t* from, std::uint8_t* to, PayloadPlan plan, const std::uint64_t* verdict) {
  if (verdict != nullptr && *verdict != 0) return;
  // Several frames are those of a payload: a power of two.
  const std::uint64_t frame_bytes = plan.frames == 1 ? 0 : kPayloadFrameBytes;
  const std::uint64_t tile = blockIdx.x * kTileBytes;
  const std::uint64_t frame = plan.frames == 1 ? 0 : tile / kPayloadFrameBytes;
  const std::uint64_t begin = tile - frame * frame_bytes;
  const std::uint64_t end = plan.extent(frame).bytes;
  const std::uint64_t framed = frame * plan.frame_stride + sizeof(FrameHeader);
  const std::uint64_t plain = frame * frame_bytes;
  from += kIntoFrames ? plain : framed;
  to += kIntoFrames ? framed : plain;
#pragma unroll
  for (unsigned r = 0; r < kRounds; ++r) {
    const std::uint64_t at = begin + (r * kThreads + threadIdx.x) * std::uint64_t{kUnit};
    if (at >= end) return;
    if (end - at >= kUnit && is_aligned(from, kUnit) && is_aligned(to, kUnit)) {
      *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
    } else {
      for (std::uint64_t i = at; i < end && i < at + kUnit; ++i) to[i] = from[i];
    }
  }
}

core::Status launch_decode(core::DType format, const Decode& args, Stream stream) {
  const Grid grid{(args.plan.elements + kTile - 1) / kTile, kThreads};
  return with_sink(args.sink,
                   [&]<Sink kSink>() { return launch(decode<kSink>, grid, stream, args, format); });
}

Grid copy_grid(const PayloadPlan& plan) {
  return {(plan.elements * plan.element_bytes + kTileBytes - 1) / kTileBytes, kThreads};
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

core::Status decode_plain_frames(const Decode& args, Stream stream) {
  return launch_decode(core::DType::Float32, args, stream);
}

}  // namespace geocomm::codec::cuda
