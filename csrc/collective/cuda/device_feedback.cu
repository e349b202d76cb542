#include "codec/cuda/device.h"
#include "collective/cuda/device_feedback.h"
#include "collective/cuda/sum_pieces.cuh"

namespace geocomm::collective::cuda {
namespace {

using codec::cuda::Grid;
using codec::cuda::launch;
using codec::cuda::Quad;
using core::DType;

// Of a tile.
enum Square : unsigned { kResult, kScaled, kResidual, kSquares };

__device__ __forceinline__ double summed(double value) {
  return codec::cuda::combine_all<kThreads>(value, [](double a, double b) { return __dadd_rn(a, b); });
}

// By a block: of values that other blocks may have written.
__device__ double total_of(const double* values, std::uint64_t count) {
  double sum = 0;
  for (std::uint64_t i = threadIdx.x; i < count; i += kThreads) {
    sum = __dadd_rn(sum, *const_cast<const volatile double*>(values + i));
  }
  return summed(sum);
}

__device__ __forceinline__ bool is_finite(double value) {
  return (__double_as_longlong(value) & 0x7FF0000000000000) != 0x7FF0000000000000;
}

template <DType kType>
__device__ __forceinline__ void leave_units(const FeedbackPiece& piece, std::uint64_t at, unsigned here,
                                            double (&squares)[kSquares]) {
  const bool has_scale = piece.scale != nullptr;
  const Quad scale = has_scale ? load<DType::Float32>(piece.scale, at, here) : Quad{};
  Quad result = load<DType::Float32>(piece.sums, at, here);
  Quad lost = load<DType::Float32>(piece.next, at, here);
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) {
    if (piece.divisor != 1.0f) result.v[c] = codec::cuda::divide_as_host(result.v[c], piece.divisor);
    if (piece.unit != 1.0f) lost.v[c] = codec::cuda::multiply_as_host(lost.v[c], piece.unit);
  }
  result = codec::cuda::rounded<kType>(result);
  squares[kResidual] = codec::cuda::with_squares(squares[kResidual], lost, here);
  if (has_scale) {
    squares[kScaled] = codec::cuda::with_squares(squares[kScaled], result, here);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      result.v[c] = codec::cuda::multiply_as_host(result.v[c], scale.v[c]);
      lost.v[c] = codec::cuda::multiply_as_host(lost.v[c], scale.v[c]);
    }
    result = codec::cuda::rounded<kType>(result);
  }
  squares[kResult] = codec::cuda::with_squares(squares[kResult], result, here);
  store<kType>(piece.elements, at, result, here);
  if (has_scale || piece.unit != 1.0f) store<DType::Float32>(piece.next, at, lost, here);
}

__device__ void copy_residuals(const Pieces<FeedbackPiece>& pieces, std::uint64_t first, std::uint64_t stride,
                               bool back) {
  for_tiles(
      pieces, first, stride,
      [&](const FeedbackPiece& piece, std::uint64_t at, unsigned here) {
        float* const previous = const_cast<float*>(piece.previous);
        store<DType::Float32>(back ? piece.next : previous, at,
                              load<DType::Float32>(back ? previous : piece.next, at, here), here);
      },
      [](std::uint64_t) {});
}

// The block that ends last knows all squares. That it alone restores residuals takes long, and is rare.
template <DType kType>
__global__ void __launch_bounds__(kThreads) end(Pieces<FeedbackPiece> pieces, FeedbackEnd args) {
  __shared__ bool is_last;
  __shared__ bool commits;
  double squares[kSquares] = {};
  for_tiles(
      pieces, blockIdx.x, gridDim.x,
      [&](const FeedbackPiece& piece, std::uint64_t at, unsigned here) {
        leave_units<kType>(piece, at, here, squares);
      },
      [&](std::uint64_t job) {
        for (unsigned s = 0; s < kSquares; ++s) {
          const double of_tile = summed(squares[s]);
          if (threadIdx.x == 0) args.squares_dev[s * pieces.jobs() + job] = of_tile;
          squares[s] = 0;
        }
      });
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = gridDim.x == 1 || atomicAdd(args.turn_dev, 1u) + 1 == gridDim.x;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const double result = total_of(args.squares_dev + kResult * pieces.jobs(), pieces.jobs());
  const double scaled = total_of(args.squares_dev + kScaled * pieces.jobs(), pieces.jobs());
  const double residual = total_of(args.squares_dev + kResidual * pieces.jobs(), pieces.jobs());
  const double given = total_of(args.input_squares_dev, args.contribution_tiles);
  const double owned = total_of(args.input_squares_dev + args.contribution_tiles, args.result_tiles);
  if (threadIdx.x == 0) {
    const double input = __dadd_rn(given, __dmul_rn(owned, args.result_unit));
    bool sound = args.totals->succeeded != 0;
    for (std::uint32_t w = 0; w < args.verdicts.count; ++w) {
      args.verdicts.words[w] = args.verdicts.words_dev[w];
      sound = sound && args.verdicts.words_dev[w] == 0;
    }
    commits = sound && is_finite(input) && is_finite(result);
    args.totals->input_square = input;
    args.totals->residual_square = residual;
    args.totals->scaled_square = scaled;
    args.totals->result_square = result;
    args.totals->committed = commits ? 1 : 0;
    *args.turn_dev = commits ? 1 : 0;
  }
  __syncthreads();
  if (args.restores && !commits) copy_residuals(pieces, 0, 1, true);
}

__global__ void __launch_bounds__(kThreads)
    replace(Pieces<FeedbackPiece> pieces, const std::uint32_t* committed_dev) {
  if (*committed_dev != 0) copy_residuals(pieces, blockIdx.x, gridDim.x, false);
}

}  // namespace

std::size_t feedback_square_count(std::span<const FeedbackPiece> list) {
  return kSquares * pieces_of(list).jobs();
}

core::Status end_feedback(DType dtype, std::span<const FeedbackPiece> list, const FeedbackEnd& args,
                          Stream stream) {
  const Pieces<FeedbackPiece> pieces = pieces_of(list);
  Grid grid = grid_of(pieces);
  grid.blocks = std::max<std::uint64_t>(grid.blocks, 1);
  return codec::with_compressible(
      dtype, [&]<DType kType>() { return launch(end<kType>, grid, stream, pieces, args); });
}

core::Status replace_residuals(std::span<const FeedbackPiece> list, const std::uint32_t* committed_dev,
                               Stream stream) {
  const Pieces<FeedbackPiece> pieces = pieces_of(list);
  return launch(replace, grid_of(pieces), stream, pieces, committed_dev);
}

}  // namespace geocomm::collective::cuda
