// DeadZone and BitPlanes: what goes through elements, to encode, then to decode; dead_zone_codes.cu has the
// rest.
#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/huffman.cuh"
#include "codec/cuda/planes.cuh"
#include "codec/cuda/stages.h"
#include "codec/cuda/verdict.h"
#include "codec/frames/bitmap.h"

namespace geocomm::codec::cuda {

// Quantizes blocks: one pass over the input. The arithmetic is that of dead_zone_kernels.h.

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

// Steps, bitmap, packed codes and their counts; the residuals of all blocks but the raw ones.
core::Status quantize_dead_zone(core::DType dtype, float step, const ElementEncode& args,
                                const DeadZoneSpace& space, Stream stream) {
  return with_values(dtype, args.residual, [&]<core::DType kType, bool kFeedback>() {
    return launch(quantize<kType, kFeedback>, grid_of_teams(args.plan), stream, args, space, step);
  });
}

// Frames to elements. All of the payload has been checked before.

// Codes of the block that come before this warp's elements. By the whole warp, which has one block.
__device__ unsigned codes_before_warp(const std::uint8_t* bitmap, unsigned elements) {
  unsigned count = 0;
  for (unsigned at = 32 * (threadIdx.x % kWarp); at < elements; at += 32 * kWarp) {
    count += static_cast<unsigned>(__popc(load_any_u32(bitmap + at / 8)));
  }
  return __reduce_add_sync(kFullMask, count);
}

template <Sink kSink>
__global__ void __launch_bounds__(kBlockThreads) decode(Decode args, DeadZoneSpace space) {
  if (is_over_for_warp(args.verdict)) return;
  const TeamPlace place = find_team(args.plan);
  const BlockPlace& block = place.block;
  const SectionSpace& sections = space.sections;
  // The whole warp counts, whatever its blocks are.
  const bool is_there = block.length > 0;
  const std::uint8_t* bitmap = nullptr;
  const std::uint8_t* codes = nullptr;
  DeadZoneRun run = {};
  std::uint32_t step = kRawScale;
  const std::uint8_t* raw = nullptr;  // the block's elements, if they are there as they are
  if (is_there && args.workspace.records[block.frame].is_plain != 0) {
    raw = args.payload_of(block.frame) + std::uint64_t{block.begin} * args.plan.element_bytes;
  } else if (is_there) {
    bitmap =
        sections.section(block.frame, kBitmap).content + std::uint64_t{block.index} * (args.plan.block / 8);
    step = load_u16(sections.section(block.frame, kSteps).content + 2 * std::uint64_t{block.index});
    run = space.run(args.plan, block.frame, block.index);
    codes = sections.section(block.frame, kCodes).content + run.codes_at;
    raw = sections.section(block.frame, kRawElements).content +
          std::uint64_t{run.raw_at} * args.plan.element_bytes;
  }
  std::uint8_t* dst = args.elements(block.frame);
  const bool has_codes = step != kRawScale;
  const float value = bfloat16_bits_to_float(step);
  // A team's lanes share a block, so all of them take part or none.
  unsigned at = 0;
  if (place.warp > 0 && has_codes && place.warp * kTeamElements < block.length) {
    at = codes_before_warp(bitmap, place.warp * kTeamElements);
  }
  for (unsigned row = 0; row < place.rows; ++row) {
    const unsigned offset = place.offset(row);
    const unsigned count = place.count(row);
    unsigned nibble = 0;
    if (has_codes && count > 0) nibble = static_cast<unsigned>(bitmap[offset / 8]) >> offset % 8 & 0xFu;
    const KeptRow kept = count_kept(nibble, block.lanes);
    if (is_there && count > 0) {
      if (has_codes) {
        const std::uint8_t* own = codes + at + kept.before;
        std::uint32_t word = 0;
#pragma unroll
        for (unsigned c = 0; c < 4; ++c) {
          if ((nibble >> c & 1u) != 0) word |= std::uint32_t{*own++} << 8 * c;
        }
        Quad values = bytes_to_floats<128>(word ^ 0x80808080u);
#pragma unroll
        for (int c = 0; c < 4; ++c) values.v[c] = __fmul_rn(values.v[c], value);
        put_quad<kSink>(dst, block.begin + offset, values, count);
      } else {
        put_plain<kSink>(args.dtype, raw + std::uint64_t{offset} * args.plan.element_bytes, dst,
                         block.begin + offset, count);
      }
    }
    at += kept.total;
  }
}

// The room holds the sections, then the blocks' runs, then their packed codes, then the counts of the planes.

SectionShape shape_of(const CodecSpec& spec, const PayloadPlan& plan, Direction direction) {
  const FrameExtent& largest = plan.largest();
  SectionShape shape{kDeadZoneSections, 1u << kBitmap | 1u << kCodes, {}};
  shape.is_received = direction == Direction::Decode;
  shape.bytes[kSteps] = largest.codes_at;
  shape.bytes[kBitmap] = static_cast<std::uint32_t>(bitmap_bytes(largest.elements));
  shape.bytes[kCodes] = largest.elements;
  if (spec.id == CodecId::BitPlanes) {
    for (std::uint32_t s = kSigns; s <= kFours; ++s) {
      shape.planes |= 1u << s;
      shape.bytes[s] = shape.bytes[kBitmap];
    }
  }
  return shape;
}

DeadZoneSpace space_of(const CodecSpec& spec, const PayloadPlan& plan, Direction direction,
                       SpaceCutter& room) {
  DeadZoneSpace space{};
  space.sections =
      take_section_space(shape_of(spec, plan, direction), plan, spec.entropy != Entropy::None, room);
  space.runs = room.take<DeadZoneRun>(plan.blocks());
  space.packed_bytes = SpaceCutter::aligned(plan.largest().elements);
  space.packed = room.take<std::uint8_t>(plan.frames * space.packed_bytes);
  space.counts = room.take<std::uint32_t>(std::uint64_t{plan.frames} * kDeadZoneSections);
  return space;
}

void take_room(const CodecSpec& spec, core::DType, const PayloadPlan& plan, Direction direction,
               SpaceCutter& room) {
  space_of(spec, plan, direction, room);
}

core::Status encode(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  SpaceCutter room(input.workspace.room);
  const DeadZoneSpace space = space_of(run.spec, input.plan, Direction::Encode, room);
  GEOCOMM_RETURN_IF_ERROR(quantize_dead_zone(run.dtype, run.spec.step, input, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(gather_dead_zone_codes(input, space, run.stream));
  if (run.spec.id == CodecId::BitPlanes) GEOCOMM_RETURN_IF_ERROR(split_codes(input, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(place_sections(run, space.sections, PlainFrames::None));
  return write_dead_zone_raw(run.dtype, input, space, run.stream);
}

core::Status check(const DecodeRun& run) {
  const Decode& args = run.args;
  SpaceCutter room(args.workspace.room);
  const DeadZoneSpace space = space_of(run.spec, args.plan, Direction::Decode, room);
  const bool has_planes = run.spec.id == CodecId::BitPlanes;
  GEOCOMM_RETURN_IF_ERROR(walk_dead_zone_blocks(args, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(decode_sections(run, space.sections, kSteps, kSigns));
  GEOCOMM_RETURN_IF_ERROR(check_dead_zone_blocks(args, space, has_planes, run.stream));
  return has_planes ? find_codes(run, space)
                    : decode_sections(run, space.sections, kSigns, kDeadZoneSections);
}

core::Status put(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  const DeadZoneSpace space = space_of(run.spec, run.args.plan, Direction::Decode, room);
  const Decode args = run.part();
  return with_sink(args.sink, [&]<Sink kSink>() {
    return launch(decode<kSink>, grid_of_teams(args.plan), run.stream, args, space);
  });
}

}  // namespace

const CodecFamily kDeadZoneFamily{true, true, take_room, encode, check, put};

}  // namespace geocomm::codec::cuda
