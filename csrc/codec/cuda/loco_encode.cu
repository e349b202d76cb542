// The records of chunks, when these have chosen: a warp per chunk, lane u with the values 4 u .. + 3 of each
// row of 128.
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/loco_levels.cuh"
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

  // run(at, values, present): `present` of the four from `at` on are there; others are 0.
  template <typename Run>
  __device__ __forceinline__ void for_quads(Run&& run) const {
    for (std::uint32_t row = 0; row < count; row += kRow) {
      const std::uint32_t at = row + 4 * (threadIdx.x % kWarp);
      const unsigned present = four_from(at, count);
      const auto* from = reinterpret_cast<const std::uint8_t*>(values + at);
      run(at, load_quad<core::DType::Float32>(from, present, is_aligned(from, 16)), present);
    }
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
  const auto for_quads = [&](auto&& run) {
    own.for_quads([&](std::uint32_t, const Quad& values, unsigned present) { run(values, present); });
  };
  std::uint32_t peak = 0;
  for_quads([&](const Quad& values, unsigned) { peak = peak_with(peak, values); });
  peak = __reduce_max_sync(kFullMask, peak);
  const bool is_raw = peak >= kInfBits;
  LevelRule rule{};
  Levels levels{kRawScale, 0};
  if (!is_raw) {
    rule = find_rule<false>(for_quads, own.count, peak);
    levels = find_levels(for_quads, own.count, rule);
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
  const ResidualView residual = args.chosen.plan.residual_of(args.chosen.residual, own.chunk.frame);
  own.for_quads([&](std::uint32_t at, const Quad& values, unsigned present) {
    if (present == 0) return;
    std::uint32_t byte = 0;
    for (unsigned c = 0; c < present; ++c) {
      const float value = values.v[c];
      float lost = 0.0f;
      if (!is_raw) {
        const std::uint32_t code = rule.code_of(value);
        byte |= code << 2 * c;
        lost = __fsub_rn(value, levels.value(code));
      }
      if (residual.data != nullptr) store_residual(residual, own.places[at + c], lost);
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
  const std::uint32_t before = raw_blocks_before(records, own.chunk.index, stride);
  auto* to = reinterpret_cast<float*>(sections.content(own.chunk.frame, LocoSection::Raw)) +
             std::uint64_t{before} * args.k;
  for (std::uint32_t i = threadIdx.x % kWarp; i < own.count; i += kWarp) to[i] = own.values[i];
}

__global__ void __launch_bounds__(kLocoThreads) name_sections(LocoEncode args) {
  const std::uint32_t frame = blockIdx.x * kLocoThreads + threadIdx.x;
  if (frame >= args.chosen.plan.frames) return;
  const SectionSpace& sections = args.chosen.space.sections;
  sections.name(frame, LocoSection::Head, sizeof(LocoHead));
  sections.name(frame, LocoSection::Records,
                records_bytes_of(args.k, args.chosen.plan.extent(frame).elements));
  sections.name(frame, LocoSection::Raw, args.raw_values[frame] * static_cast<std::uint32_t>(sizeof(float)));
}

}  // namespace

core::Status write_loco_records(const LocoEncode& args, Stream stream) {
  const Grid chunks = grid_of_chunks(args.chosen.plan);
  const Grid frames = one_thread_each(args.chosen.plan.frames, kLocoThreads);
  GEOCOMM_RETURN_IF_ERROR(launch(begin_frames, frames, stream, args));
  GEOCOMM_RETURN_IF_ERROR(launch(write_records, chunks, stream, args));
  GEOCOMM_RETURN_IF_ERROR(launch(copy_raw, chunks, stream, args));
  return launch(name_sections, frames, stream, args);
}

}  // namespace geocomm::codec::cuda
