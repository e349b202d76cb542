// Frames of None, Fp16 and Bf16: elements one by one. A cast's frame in which a finite value would become Inf
// becomes one of None.
#include "codec/cuda/cast_range.cuh"
#include "codec/cuda/device.h"
#include "codec/cuda/element_tile.cuh"
#include "codec/cuda/kernels.h"
#include "codec/cuda/plain_store.cuh"

namespace geocomm::codec::cuda {
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

core::Status encode_plain_sums(core::DType dtype, const ElementEncode& args, Stream stream) {
  return with_compressible(dtype, [&]<core::DType kType>() {
    return launch(encode_plain<kType>, grid_of_tiles(args.plan), stream, args);
  });
}

}  // namespace geocomm::codec::cuda
