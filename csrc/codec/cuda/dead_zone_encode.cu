// Quantizes blocks: one pass over the input. The arithmetic is that of dead_zone_kernels.h.
#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/block_team.cuh"
#include "codec/cuda/dead_zone_stages.h"
#include "codec/cuda/huffman_device.cuh"
#include "codec/cuda/kept_rows.cuh"

namespace geocomm::codec::cuda {
namespace {

using Moment = MomentScale<CodecId::DeadZone, true>;

constexpr unsigned kHalfPitch = 80;  // packed codes of the second of two blocks in a warp

// The step of a block; `bits` are kRawScale where a code would exceed 127.
struct Step {
  Scale scale;
  float inverse;
};
__device__ __forceinline__ Step step_of(float sum, std::uint32_t peak, unsigned length, float factor) {
  const float mean = __fdiv_rn(sum, static_cast<float>(length));
  const float rms = __fmul_rn(__fsqrt_rn(mean), peak_range(peak).up);
  std::uint32_t bits = float_to_bfloat16_bits(__fmul_rn(rms, factor));
  bits = bits < kMinScaleBits ? kMinScaleBits : bits > kMaxStep ? kMaxStep : bits;
  Step step{{bits, bfloat16_bits_to_float(bits)}, 0.0f};
  step.inverse = __fdiv_rn(1.0f, step.scale.value);
  const float largest = __fsub_rn(__fmul_rn(__uint_as_float(peak), step.inverse), 0.1f);
  if (peak >= kInfBits || !(largest < 127.5f)) step.scale.bits = kRawScale;
  return step;
}

// Four codes, one per byte.
__device__ __forceinline__ std::uint32_t codes_of(const Quad& values, float inverse) {
  std::uint32_t code[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float y = __fmul_rn(values.v[c], inverse);
    const float shift = __uint_as_float(0x3DCCCCCDu | (__float_as_uint(y) & ~kMagnitude));  // 0.1
    code[c] = __float_as_uint(__fadd_rn(__fsub_rn(y, shift), kRoundingMagic));
  }
  return low_bytes(code[0], code[1], code[2], code[3]);
}

// Which of the four codes are not zero.
__device__ __forceinline__ unsigned kept_of(std::uint32_t codes) {
  unsigned nibble = 0;
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) nibble |= (codes >> 8 * c & 0xFFu) != 0 ? 1u << c : 0u;
  return nibble;
}

template <core::DType kType, bool kFeedback>
__global__ void __launch_bounds__(kBlockThreads)
    quantize(ElementEncode args, DeadZoneSpace space, float factor) {
  __shared__ std::uint32_t peaks[kBlockWarps];
  __shared__ std::uint32_t counts[kBlockWarps];
  __shared__ Quad sums_of_teams[kBlockWarps][kWarp];
  __shared__ __align__(16) std::uint8_t packed_of_warps[kBlockWarps][kTeamElements];

  const TeamPlace place = find_team(args.plan);
  const BlockPlace& block = place.block;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  const bool is_shared = place.warps > 1;

  const std::uint8_t* src = args.elements(block.frame);
  const ResidualView residual = args.residual_of(block.frame);

  Quad held[kTeamRows];
  std::uint32_t peak = 0;
#pragma unroll
  for (unsigned row = 0; row < kTeamRows; ++row) {
    if (row >= place.rows) continue;
    held[row] =
        load_values<kType, kFeedback>(src, residual, block.begin + place.offset(row), place.count(row));
    peak = peak_with(peak, held[row]);
  }
  peak = reduce_lanes(peak, block.lanes, [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; });
  if (is_shared) {
    if (lane == 0) peaks[warp] = peak;
    __syncthreads();
    for (unsigned w = 0; w < place.warps; ++w) {
      const std::uint32_t other = peaks[place.first_warp() + w];
      peak = other > peak ? other : peak;
    }
  }

  // The partial sums go from warp to warp: their order is the format's.
  Quad sums = {};
  Quad& passed = sums_of_teams[place.first_warp()][lane];
  for (unsigned turn = 0; turn < place.warps; ++turn) {
    if (turn == place.warp) {
      if (turn > 0) sums = passed;
#pragma unroll
      for (unsigned row = 0; row < kTeamRows; ++row) {
        if (row < place.rows) Moment::add(held[row], peak, sums);
      }
      if (is_shared) passed = sums;
    }
    if (is_shared) __syncthreads();
  }
  if (is_shared) sums = passed;
  const Step step = step_of(fold(sums, block.lanes), peak, block.length, factor);
  const bool is_raw = step.scale.bits == kRawScale;

  const unsigned half = lane / block.lanes;
  std::uint8_t* packed = packed_of_warps[warp] + half * kHalfPitch;
  std::uint8_t* bitmap = space.sections.content(block.frame, kBitmap) + block.index * (args.plan.block / 8);
  unsigned count = 0;
#pragma unroll
  for (unsigned row = 0; row < kTeamRows; ++row) {
    if (row >= place.rows) continue;
    const std::uint32_t codes = is_raw ? 0u : codes_of(held[row], step.inverse);
    const unsigned nibble = kept_of(codes);
    const KeptRow kept = count_kept(nibble, block.lanes);
    unsigned at = count + kept.before;
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      if ((nibble >> c & 1u) != 0) packed[at++] = static_cast<std::uint8_t>(codes >> 8 * c);
    }
    count += kept.total;
    store_bits(nibble, place.count(row) > 0, bitmap + place.offset(row) / 8);
    if constexpr (kFeedback) {
      if (!is_raw) {
        Quad decoded = bytes_to_floats<128>(codes ^ 0x80808080u);
#pragma unroll
        for (int c = 0; c < 4; ++c) decoded.v[c] = __fmul_rn(decoded.v[c], step.scale.value);
        store_residual(residual, block.begin + place.offset(row), held[row], decoded, place.count(row));
      }
    }
  }

  unsigned before = 0;
  unsigned all = count;
  if (is_shared) {
    if (lane == 0) counts[warp] = count;
    __syncthreads();
    all = 0;
    for (unsigned w = 0; w < place.warps; ++w) {
      if (w == place.warp) before = all;
      all += counts[place.first_warp() + w];
    }
  } else {
    __syncwarp();
  }
  if (block.length == 0) return;
  std::uint8_t* to =
      space.packed + block.frame * space.packed_bytes + std::uint64_t{block.index} * args.plan.block + before;
  copy_bytes(to, packed, count, block.u, block.lanes);
  if (block.u != 0 || place.warp != 0) return;
  auto* steps = reinterpret_cast<std::uint16_t*>(space.sections.content(block.frame, kSteps));
  steps[block.index] = static_cast<std::uint16_t>(step.scale.bits);
  space.run(args.plan, block.frame, block.index).codes = all;
  if (is_raw) args.workspace.state->irregular = 1;
}

}  // namespace

core::Status quantize_dead_zone(core::DType dtype, float step, const ElementEncode& args,
                                const DeadZoneSpace& space, Stream stream) {
  return with_values(dtype, args.residual, [&]<core::DType kType, bool kFeedback>() {
    return launch(quantize<kType, kFeedback>, grid_of_teams(args.plan), stream, args, space, step);
  });
}

}  // namespace geocomm::codec::cuda
