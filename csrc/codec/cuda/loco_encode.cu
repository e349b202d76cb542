// The records of chunks, when these have chosen: a warp per chunk, lane u with the values 4 u .. + 3 of each
// row of 128, so that the 128 partial sums of the format are four registers in each lane.
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/loco_records.cuh"
#include "codec/cuda/loco_stages.h"
#include "codec/quantizers/block/block_layout.h"

namespace geocomm::codec::cuda {
namespace {

// The values that a chunk gave.
struct ChunkValues {
  LocoChunk chunk;
  std::uint32_t count;
  const float* values;
  const std::uint32_t* places;  // in the frame

  __device__ __forceinline__ Quad load(std::uint32_t at, unsigned present) const {
    const auto* from = reinterpret_cast<const std::uint8_t*>(values + at);
    return load_quad<core::DType::Float32>(from, present, is_aligned(from, 16));
  }
};

__device__ bool find_values(const LocoEncode& args, ChunkValues& own) {
  if (!find_chunk(args.chosen.plan, own.chunk)) return false;
  const TopKEncodeSpace& space = args.chosen.space;
  own.count = loco_share(args.k, own.chunk.length);
  const std::uint64_t first = space.first_value(own.chunk.frame) + std::uint64_t{own.chunk.index} * args.k;
  own.values = space.values + first;
  own.places = space.places + first;
  return true;
}

// run(at, present) for this lane's quads: `present` of the four values from `at` on are there.
template <typename Run>
__device__ __forceinline__ void for_quads(std::uint32_t count, Run&& run) {
  for (std::uint32_t row = 0; row < count; row += kRow) {
    const std::uint32_t at = row + 4 * (threadIdx.x % kWarp);
    run(at, at >= count ? 0u : count - at < 4 ? count - at : 4u);
  }
}

// As loco_kernels.h has it.
struct Rule {
  float down;
  float up;
  float sum;
  float squares;

  __device__ __forceinline__ float scaled(float value) const {
    return __fmul_rn(__uint_as_float(__float_as_uint(value) & kMagnitude), down);
  }
  __device__ __forceinline__ bool is_high(float t) const { return __fmul_rn(t, sum) >= squares; }
};

__device__ Rule find_rule(const ChunkValues& own, std::uint32_t peak) {
  const std::uint32_t bits = peak >> 23;
  const std::uint32_t exponent = bits < 1 ? 1 : bits > 253 ? 253 : bits;
  Rule rule{__uint_as_float((254 - exponent) << 23), __uint_as_float(exponent << 23), 0, 0};
  Quad sums{};
  Quad squares{};
  for_quads(own.count, [&](std::uint32_t at, unsigned present) {
    const Quad values = own.load(at, present);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      const float t = rule.scaled(values.v[c]);
      sums.v[c] = __fadd_rn(sums.v[c], t);
      squares.v[c] = __fadd_rn(squares.v[c], __fmul_rn(t, t));
    }
  });
  rule.sum = fold(sums, kWarp);
  rule.squares = fold(squares, kWarp);
  return rule;
}

__device__ std::uint32_t level_of(float sum, std::uint32_t members, float up) {
  if (members == 0) return 0;
  const float level = __fmul_rn(__fdiv_rn(sum, static_cast<float>(members)), up);
  return narrow_saturated<core::DType::BFloat16>(level);
}

struct Levels {
  std::uint32_t low;
  std::uint32_t high;
};

__device__ Levels find_levels(const ChunkValues& own, const Rule& rule) {
  Quad low{};
  Quad high{};
  std::uint32_t above = 0;
  for_quads(own.count, [&](std::uint32_t at, unsigned present) {
    const Quad values = own.load(at, present);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      const float t = rule.scaled(values.v[c]);
      const bool is_high = c < present && rule.is_high(t);
      high.v[c] = __fadd_rn(high.v[c], is_high ? t : 0.0f);
      low.v[c] = __fadd_rn(low.v[c], is_high ? 0.0f : t);
      above += is_high ? 1 : 0;
    }
  });
  above = __reduce_add_sync(kFullMask, above);
  const float high_sum = fold(high, kWarp);
  const float low_sum = fold(low, kWarp);
  return {level_of(low_sum, own.count - above, rule.up), level_of(high_sum, above, rule.up)};
}

__device__ void keep_lost(const LocoEncode& args, const ChunkValues& own, std::uint32_t at, float lost) {
  const ResidualView& residual = args.chosen.residual;
  const std::uint64_t element = own.chunk.frame * args.chosen.plan.frame_elements + own.places[at];
  if (residual.is_bfloat16) {
    *reinterpret_cast<std::uint16_t*>(residual.at(element)) = narrow_saturated<core::DType::BFloat16>(lost);
  } else {
    *reinterpret_cast<float*>(residual.at(element)) = lost;
  }
}

// Each lane writes the bytes of its own, from what low parts and what ones lie in them.
struct PlaceWriter {
  const ChunkValues& own;
  PlaceShape shape;

  __device__ __forceinline__ std::uint32_t place(std::uint32_t index) const {
    return own.places[index] % kTopKChunk;
  }
  // In the unary part.
  __device__ __forceinline__ std::uint32_t one(std::uint32_t index) const {
    return (place(index) >> shape.low_bits) + index;
  }
  // Those in the eight bits from `at` on.
  __device__ std::uint32_t lows(std::uint32_t at) const {
    if (at >= shape.highs_at) return 0;
    std::uint32_t bits = 0;
    for (std::uint32_t i = at / shape.low_bits; i < shape.count && i * shape.low_bits < at + 8; ++i) {
      const std::uint32_t low = place(i) & ((1u << shape.low_bits) - 1);
      const std::uint32_t from = i * shape.low_bits;
      bits |= from < at ? low >> (at - from) : low << (from - at);
    }
    return bits;
  }
  // `at` is a bit of the unary part, or up to seven before it.
  __device__ std::uint32_t highs(std::int32_t at) const {
    const std::uint32_t from = at < 0 ? 0 : static_cast<std::uint32_t>(at);
    std::uint32_t first = 0;  // the first whose one is not before `from`
    for (std::uint32_t end = shape.count; first < end;) {
      const std::uint32_t middle = (first + end) / 2;
      if (one(middle) < from) {
        first = middle + 1;
      } else {
        end = middle;
      }
    }
    std::uint32_t bits = 0;
    for (; first < shape.count; ++first) {
      const std::int32_t bit = static_cast<std::int32_t>(one(first)) - at;
      if (bit >= 8) break;
      bits |= 1u << bit;
    }
    return bits;
  }
  __device__ void write(std::uint8_t* to) const {
    for (std::uint32_t byte = threadIdx.x % kWarp; byte < shape.bytes; byte += kWarp) {
      std::uint32_t bits = lows(8 * byte);
      if (8 * byte + 8 > shape.highs_at) {
        bits |= highs(static_cast<std::int32_t>(8 * byte) - static_cast<std::int32_t>(shape.highs_at));
      }
      to[byte] = static_cast<std::uint8_t>(bits);
    }
  }
};

__global__ void __launch_bounds__(kLocoThreads) begin_frames(LocoEncode args) {
  const std::uint32_t frame = blockIdx.x * kLocoThreads + threadIdx.x;
  if (frame >= args.chosen.plan.frames) return;
  std::uint8_t* head = args.chosen.space.sections.content(frame, LocoSection::Head);
  *reinterpret_cast<std::uint32_t*>(head) = args.k;
  args.raw_values[frame] = 0;
}

__global__ void __launch_bounds__(kLocoThreads) write_records(LocoEncode args) {
  ChunkValues own;
  if (!find_values(args, own)) return;
  std::uint32_t peak = 0;
  for_quads(own.count, [&](std::uint32_t at, unsigned present) {
    const Quad values = own.load(at, present);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      const std::uint32_t magnitude = __float_as_uint(values.v[c]) & kMagnitude;
      peak = magnitude > peak ? magnitude : peak;
    }
  });
  peak = __reduce_max_sync(kFullMask, peak);
  const bool is_raw = peak >= kInfBits;
  Rule rule{};
  Levels levels{kRawScale, 0};
  if (!is_raw) {
    rule = find_rule(own, peak);
    levels = find_levels(own, rule);
  }

  std::uint8_t* record = args.chosen.space.sections.content(own.chunk.frame, LocoSection::Records) +
                         std::uint64_t{own.chunk.index} * record_bytes_of(args.k);
  if (threadIdx.x % kWarp == 0) {
    const std::uint32_t both = levels.low | levels.high << 16;
    for (unsigned i = 0; i < sizeof(LocoLevels); ++i) record[i] = static_cast<std::uint8_t>(both >> 8 * i);
    if (is_raw) atomicAdd(&args.raw_values[own.chunk.frame], own.count);
  }
  const PlaceWriter places{own, shape_of(own.chunk.length, own.count)};
  places.write(record + sizeof(LocoLevels));
  std::uint8_t* codes = record + sizeof(LocoLevels) + places.shape.bytes;
  for_quads(own.count, [&](std::uint32_t at, unsigned present) {
    if (present == 0) return;
    const Quad values = own.load(at, present);
    std::uint32_t byte = 0;
    for (unsigned c = 0; c < present; ++c) {
      const float value = values.v[c];
      float lost = 0.0f;
      if (!is_raw) {
        const bool is_high = rule.is_high(rule.scaled(value));
        const std::uint32_t negative = __float_as_uint(value) >> 31;
        byte |= ((is_high ? 1u : 0u) | negative << 1) << 2 * c;
        const std::uint32_t level = is_high ? levels.high : levels.low;
        lost = __fsub_rn(value, __uint_as_float(level << 16 | negative << 31));
      }
      if (args.chosen.residual.data != nullptr) keep_lost(args, own, at + c, lost);
    }
    codes[at / 4] = static_cast<std::uint8_t>(byte);
  });
}

// What raw chunks carry, one after the other: all but the last have k values.
__global__ void __launch_bounds__(kLocoThreads) copy_raw(LocoEncode args) {
  ChunkValues own;
  if (!find_values(args, own)) return;
  if (args.raw_values[own.chunk.frame] == 0) return;
  const SectionSpace& sections = args.chosen.space.sections;
  const std::uint8_t* records = sections.content(own.chunk.frame, LocoSection::Records);
  const std::uint64_t stride = record_bytes_of(args.k);
  if (load_u16(records + own.chunk.index * stride) != kRawScale) return;
  std::uint32_t before = 0;
  for (std::uint32_t i = threadIdx.x % kWarp; i < own.chunk.index; i += kWarp) {
    before += load_u16(records + i * stride) == kRawScale ? 1 : 0;
  }
  before = __reduce_add_sync(kFullMask, before);
  auto* to = reinterpret_cast<float*>(sections.content(own.chunk.frame, LocoSection::Raw)) +
             std::uint64_t{before} * args.k;
  for (std::uint32_t i = threadIdx.x % kWarp; i < own.count; i += kWarp) to[i] = own.values[i];
}

__global__ void __launch_bounds__(kLocoThreads) name_sections(LocoEncode args) {
  const std::uint32_t frame = blockIdx.x * kLocoThreads + threadIdx.x;
  if (frame >= args.chosen.plan.frames) return;
  const SectionSpace& sections = args.chosen.space.sections;
  const auto name = [&](std::uint32_t section, std::uint32_t bytes) {
    sections.section(frame, section) = {sections.content(frame, section), bytes, 0, 0, 0};
  };
  name(LocoSection::Head, sizeof(LocoHead));
  name(LocoSection::Records, records_bytes_of(args.k, args.chosen.plan.extent(frame).elements));
  name(LocoSection::Raw, args.raw_values[frame] * static_cast<std::uint32_t>(sizeof(float)));
}

}  // namespace

core::Status write_loco_records(const LocoEncode& args, Stream stream) {
  const Grid chunks = grid_of_chunks(args.chosen.plan);
  const Grid frames = grid_of_frames(args.chosen.plan);
  GEOCOMM_RETURN_IF_ERROR(launch(begin_frames, frames, stream, args));
  GEOCOMM_RETURN_IF_ERROR(launch(write_records, chunks, stream, args));
  GEOCOMM_RETURN_IF_ERROR(launch(copy_raw, chunks, stream, args));
  return launch(name_sections, frames, stream, args);
}

}  // namespace geocomm::codec::cuda
