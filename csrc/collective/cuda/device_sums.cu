#include "codec/cuda/device.h"
#include "collective/cuda/device_sums.h"
#include "collective/cuda/sum_pieces.cuh"

namespace geocomm::collective::cuda {
namespace {

using codec::cuda::Grid;
using codec::cuda::launch;
using codec::cuda::Quad;
using core::DType;

template <DType kType>
__global__ void __launch_bounds__(kThreads) accumulate(Pieces<SumPiece> pieces, bool adds) {
  for_quads(pieces, [&](const SumPiece& piece, std::uint64_t at, unsigned here) {
    Quad quad = load<kType>(piece.elements, at, here);
    if (piece.scale != nullptr) {
      const Quad scale = load<DType::Float32>(piece.scale, at, here);
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) quad.v[c] = codec::cuda::divide_as_host(quad.v[c], scale.v[c]);
      quad = codec::cuda::rounded<kType>(quad);
    }
    if (adds) {
      const Quad old = load<DType::Float32>(piece.sums, at, here);
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) quad.v[c] = codec::cuda::add_residual(old.v[c], 1.0f, quad.v[c]);
    }
    store<DType::Float32>(piece.sums, at, quad, here);
  });
}

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    finish(Pieces<SumPiece> pieces, float divisor, Publication publication) {
  publication.publish();
  for_quads(pieces, [&](const SumPiece& piece, std::uint64_t at, unsigned here) {
    Quad quad = load<DType::Float32>(piece.sums, at, here);
    if (divisor != 1.0f) {
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) quad.v[c] = codec::cuda::divide_as_host(quad.v[c], divisor);
    }
    if (piece.elements == nullptr) {
      store<DType::Float32>(piece.sums, at, quad, here);
    } else {
      store<kType>(piece.elements, at, quad, here);
    }
  });
}

}  // namespace

core::Status accumulate_elements(DType dtype, std::span<const SumPiece> list, codec::Accumulate mode,
                                 Stream stream) {
  const Pieces<SumPiece> pieces = pieces_of(list);
  const bool adds = mode == codec::Accumulate::Add;
  return codec::with_compressible(
      dtype, [&]<DType kType>() { return launch(accumulate<kType>, grid_of(pieces), stream, pieces, adds); });
}

core::Status finish_sums(DType dtype, std::span<const SumPiece> list, int divisor,
                         const Publication& publication, Stream stream) {
  const Pieces<SumPiece> pieces = pieces_of(list);
  Grid grid = grid_of(pieces);
  if (publication.count > 0) grid.blocks = std::max<std::uint64_t>(grid.blocks, 1);
  return codec::with_compressible(dtype, [&]<DType kType>() {
    return launch(finish<kType>, grid, stream, pieces, static_cast<float>(divisor), publication);
  });
}

}  // namespace geocomm::collective::cuda
