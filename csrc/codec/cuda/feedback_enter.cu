// Where a batch with error feedback begins: its records, and residuals that are to become the new ones.
#include "codec/cuda/block_scan.cuh"
#include "codec/cuda/kernels.h"

namespace geocomm::codec::cuda {
namespace {

constexpr unsigned kThreads = 256;

__device__ __forceinline__ Quad load_floats(const std::uint8_t* base, std::uint64_t at, unsigned count) {
  return load_quad<core::DType::Float32>(base + 4 * at, count, is_aligned(base + 4 * at, 16));
}

// A tile of one frame at a time.
template <core::DType kType>
__global__ void __launch_bounds__(kThreads) enter(EnterFeedback args) {
  __shared__ FrameSlot slot;
  const std::uint64_t first = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (first == 0) {
    *args.workspace.state = {0, args.plan.frames, {0, 0}};
    if (args.cleared != nullptr) *args.cleared = 0;
  }
  const std::uint64_t jobs = std::uint64_t{args.plan.frames} * args.tiles_per_frame;
  for (std::uint64_t job = blockIdx.x; job < jobs; job += gridDim.x) {
    const std::uint64_t frame = job / args.tiles_per_frame;
    const std::uint64_t begin = job % args.tiles_per_frame * kFeedbackTile;
    __syncthreads();
    if (threadIdx.x == 0) {
      slot = args.table[frame];
      if (begin == 0) {
        args.workspace.records[frame] = {};
        args.workspace.slots[frame] = slot;
      }
    }
    __syncthreads();
    const std::uint64_t elements = slot.extent.elements;
    const std::uint64_t end = begin + kFeedbackTile < elements ? begin + kFeedbackTile : elements;
    double squares = 0;
    for (std::uint64_t at = begin + 4 * threadIdx.x; at < end; at += 4 * kThreads) {
      const unsigned here = end - at < 4 ? static_cast<unsigned>(end - at) : 4u;
      std::uint8_t* const from = slot.elements + at * kElementBytes<kType>;
      Quad values = load_quad<kType>(from, here, is_aligned(from, 4 * kElementBytes<kType>));
      Quad lost = load_floats(slot.previous, at, here);
      if (slot.scale != nullptr) {
        const Quad scale = load_floats(slot.scale, at, here);
#pragma unroll
        for (unsigned c = 0; c < 4; ++c) lost.v[c] = divide_as_host(lost.v[c], scale.v[c]);
        if (args.scales_elements) {
#pragma unroll
          for (unsigned c = 0; c < 4; ++c) values.v[c] = divide_as_host(values.v[c], scale.v[c]);
          values = rounded<kType>(values);
          store_as_rounded<kType>(from, values, here);
        }
      }
      std::uint8_t* const to = slot.residual + 4 * at;
      store_quad<core::DType::Float32>(to, lost, here, is_aligned(to, 16));
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) values.v[c] = add_residual(values.v[c], args.decay, lost.v[c]);
      squares = with_squares(squares, values, here);
    }
    squares = combine_all<kThreads>(squares, [](double a, double b) { return __dadd_rn(a, b); });
    if (threadIdx.x == 0) args.squares[job] = squares;
  }
}

}  // namespace

core::Status enter_feedback(core::DType dtype, const EnterFeedback& args, Stream stream) {
  const Grid grid{persistent_blocks(std::uint64_t{args.plan.frames} * args.tiles_per_frame, 8), kThreads};
  return with_compressible(dtype,
                           [&]<core::DType kType>() { return launch(enter<kType>, grid, stream, args); });
}

}  // namespace geocomm::codec::cuda
