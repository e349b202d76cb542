// Frames of None, Fp16 and Bf16: elements one by one. A cast's frame in which a finite value would become Inf
// becomes one of None.
#include "codec/cuda/cast_range.cuh"
#include "codec/cuda/device.h"
#include "codec/cuda/kernels.h"
#include "codec/cuda/plain_store.cuh"

namespace geocomm::codec::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kQuads = 4;  // of a thread
constexpr unsigned kTile = kThreads * kQuads * 4;
static_assert(kPayloadFrameBytes / 4 % kTile == 0, "a tile lies in one frame");

struct Tile {
  std::uint32_t frame;
  std::uint32_t begin;  // element in the frame
};
__device__ Tile find_tile(const PayloadPlan& plan, std::uint64_t tile) {
  const std::uint64_t element = tile * kTile;
  const std::uint32_t frame = plan.frame_of_element(element);
  return {frame, static_cast<std::uint32_t>(element - frame * plan.frame_elements)};
}
std::uint64_t tiles_of(const PayloadPlan& plan) {
  return (plan.elements + kTile - 1) / kTile;
}

// Stores values in a 16-bit format or as floats, and keeps what that lost.
template <core::DType kFormat, bool kFeedback>
__device__ void encode_quad(const ElementEncode& args, std::uint8_t* payload, std::uint32_t at,
                            std::uint64_t element, const Quad& values, unsigned count) {
  store_quad<kFormat>(payload + std::uint64_t{at} * kElementBytes<kFormat>, values, count, true);
  if constexpr (kFeedback) {
    Quad decoded = values;
    if constexpr (kFormat != core::DType::Float32) {
#pragma unroll
      for (int c = 0; c < 4; ++c) decoded.v[c] = widen<kFormat>(narrow_saturated<kFormat>(values.v[c]));
    }
    store_residual(args.residual, element, values, decoded, count);
  }
}

template <typename Word>
__device__ void copy_elements(const std::uint8_t* src, std::uint8_t* payload, std::uint64_t element,
                              std::uint32_t at, unsigned count) {
  for (unsigned c = 0; c < count; ++c) {
    reinterpret_cast<Word*>(payload)[at + c] = reinterpret_cast<const Word*>(src)[element + c];
  }
}

template <core::DType kType, core::DType kFormat, bool kFeedback>
__global__ void __launch_bounds__(kThreads) encode_cast(ElementEncode args, CastPass pass) {
  const bool placed = pass == CastPass::Placed;
  if (placed && !kFeedback && args.workspace.state->irregular == 0) return;
  const Tile tile = find_tile(args.plan, blockIdx.x);
  const std::uint32_t elements = args.plan.extent(tile.frame).elements;
  FrameRecord& record = args.workspace.records[tile.frame];
  const std::uint64_t offset = placed ? record.offset : tile.frame * args.plan.frame_stride;
  std::uint8_t* payload = args.dst + offset + sizeof(FrameHeader);
  const std::uint64_t first = tile.frame * args.plan.frame_elements;

  Quad values[kQuads];
  unsigned counts[kQuads];
  bool fit = true;
#pragma unroll
  for (unsigned q = 0; q < kQuads; ++q) {
    const std::uint32_t at = tile.begin + q * (kTile / kQuads) + 4 * threadIdx.x;
    counts[q] = at >= elements ? 0 : elements - at < 4 ? elements - at : 4;
    values[q] = load_values<kType, kFeedback>(args.src, args.residual, first + at, counts[q]);
    fit = fit && all_fit<kFormat>(values[q]);
  }
  if (!placed && !fit) {
    record.raw_elements = 1;
    args.workspace.state->irregular = 1;
  }
  if (pass == CastPass::Check) return;
#pragma unroll
  for (unsigned q = 0; q < kQuads; ++q) {
    const std::uint32_t at = tile.begin + q * (kTile / kQuads) + 4 * threadIdx.x;
    if (!placed || record.is_plain == 0) {
      encode_quad<kFormat, kFeedback>(args, payload, at, first + at, values[q], counts[q]);
    } else if constexpr (kFeedback) {
      encode_quad<kType, true>(args, payload, at, first + at, values[q], counts[q]);
    } else if constexpr (kType == core::DType::Float32) {
      copy_elements<std::uint32_t>(args.src, payload, first + at, at, counts[q]);
    } else {
      copy_elements<std::uint16_t>(args.src, payload, first + at, at, counts[q]);
    }
  }
}

template <core::DType kType>
__global__ void __launch_bounds__(kThreads) encode_plain(ElementEncode args) {
  const Tile tile = find_tile(args.plan, blockIdx.x);
  const std::uint32_t elements = args.plan.extent(tile.frame).elements;
  std::uint8_t* payload = args.dst + tile.frame * args.plan.frame_stride + sizeof(FrameHeader);
  const std::uint64_t first = tile.frame * args.plan.frame_elements;
#pragma unroll
  for (unsigned q = 0; q < kQuads; ++q) {
    const std::uint32_t at = tile.begin + q * (kTile / kQuads) + 4 * threadIdx.x;
    const unsigned count = at >= elements ? 0 : elements - at < 4 ? elements - at : 4;
    const Quad values = load_values<kType, true>(args.src, args.residual, first + at, count);
    encode_quad<kType, true>(args, payload, at, first + at, values, count);
  }
}

template <core::DType kType>
__global__ void __launch_bounds__(kThreads) encode_plain_among_others(ElementEncode args) {
  const Tile tile = find_tile(args.plan, blockIdx.x);
  const FrameRecord& record = args.workspace.records[tile.frame];
  if (record.is_plain == 0) return;
  const std::uint32_t elements = args.plan.extent(tile.frame).elements;
  std::uint8_t* payload = args.dst + record.offset + sizeof(FrameHeader);
  const std::uint64_t first = tile.frame * args.plan.frame_elements;
  for (unsigned q = 0; q < kQuads; ++q) {
    const std::uint32_t at = tile.begin + q * (kTile / kQuads) + 4 * threadIdx.x;
    if (at >= elements) return;
    write_plain<kType, true>(args.src, args.residual, first + at, elements - at < 4 ? elements - at : 4,
                             payload + std::uint64_t{at} * kElementBytes<kType>);
  }
}

template <core::DType kType, core::DType kFormat>
core::Status launch_cast(CastPass pass, const ElementEncode& args, Stream stream) {
  const Grid grid{tiles_of(args.plan), kThreads};
  return args.residual.data != nullptr ? launch(encode_cast<kType, kFormat, true>, grid, stream, args, pass)
                                       : launch(encode_cast<kType, kFormat, false>, grid, stream, args, pass);
}

}  // namespace

core::Status encode_casts(CodecId id, core::DType dtype, CastPass pass, const ElementEncode& args,
                          Stream stream) {
  return with_compressible(dtype, [&]<core::DType kType>() {
    return id == CodecId::Fp16 ? launch_cast<kType, core::DType::Float16>(pass, args, stream)
                               : launch_cast<kType, core::DType::BFloat16>(pass, args, stream);
  });
}

core::Status write_plain_sums(core::DType dtype, const ElementEncode& args, Stream stream) {
  return with_compressible(dtype, [&]<core::DType kType>() {
    return launch(encode_plain_among_others<kType>, Grid{tiles_of(args.plan), kThreads}, stream, args);
  });
}

core::Status encode_plain_sums(core::DType dtype, const ElementEncode& args, Stream stream) {
  return with_compressible(dtype, [&]<core::DType kType>() {
    return launch(encode_plain<kType>, Grid{tiles_of(args.plan), kThreads}, stream, args);
  });
}

}  // namespace geocomm::codec::cuda
