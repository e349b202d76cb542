// Loco: what encodes, then what decodes. Chunks choose as TopK's do, and each writes a record. Received ones
// go the other way: all is checked, then zeros are put where nothing was chosen, and the values to their
// places.
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/device.h"
#include "codec/cuda/elements.cuh"
#include "codec/cuda/huffman.cuh"
#include "codec/cuda/loco.cuh"
#include "codec/cuda/sections.cuh"
#include "codec/cuda/stages.h"
#include "codec/cuda/verdict.h"
#include "codec/quantizers/block/block_layout.h"

namespace geocomm::codec::cuda {

struct LocoSection {
  enum : std::uint32_t { Head, Records, Raw, Count };
};

// The sections are those of `chosen.space`, of which else only what chunks choose into is there.
struct LocoEncode {
  TopKEncode chosen;
  std::uint32_t k;
  std::uint32_t* raw_values;  // per frame, in raw chunks
};

struct LocoDecode {
  Decode frames;
  SectionSpace sections;
  std::uint32_t chunks_per_frame;
  std::uint32_t* ks;          // of each frame, 0 where there is nothing to put
  std::uint32_t* raw_before;  // of a chunk: values in raw chunks of the frame before it
};

// The records of chunks, when these have chosen: a warp per chunk, lane u with the values 4 u .. + 3 of each
// row of 128.

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

__device__ ChunkValues values_of(const LocoEncode& args, const LocoChunk& chunk) {
  const TopKEncodeSpace& space = args.chosen.space;
  const std::uint64_t first = space.first_value(chunk.frame) + std::uint64_t{chunk.index} * args.k;
  return {chunk, loco_share(args.k, chunk.length), space.values + first, space.places + first};
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
  LocoChunk chunk;
  if (!find_chunk(args.chosen.plan, chunk)) return;
  const ChunkValues own = values_of(args, chunk);
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

// By a block of threads per frame: what raw chunks carry, one after the other, of which all but the last have
// k values; and the names of the sections.
__global__ void __launch_bounds__(kLocoThreads) finish_frames(LocoEncode args) {
  static_assert(kLocoThreads == kBlockThreads);
  const std::uint32_t frame = blockIdx.x;
  const SectionSpace& sections = args.chosen.space.sections;
  const std::uint32_t elements = args.chosen.plan.extent(frame).elements;
  const std::uint32_t raw_values = args.raw_values[frame];
  if (threadIdx.x == 0) {
    sections.name(frame, LocoSection::Head, sizeof(LocoHead));
    sections.name(frame, LocoSection::Records, records_bytes_of(args.k, elements));
    sections.name(frame, LocoSection::Raw, raw_values * static_cast<std::uint32_t>(sizeof(float)));
  }
  if (raw_values == 0) return;
  const std::uint8_t* records = sections.content(frame, LocoSection::Records);
  const std::uint64_t stride = record_bytes_of(args.k);
  auto* const raw = reinterpret_cast<float*>(sections.content(frame, LocoSection::Raw));
  for_raw_blocks(
      chunks_of(elements),
      [=](std::uint32_t index) { return load_u16(records + index * stride) == kRawScale; },
      [&](std::uint32_t index, std::uint32_t before) {
        const ChunkValues own = values_of(args, chunk_at(frame, index, elements));
        float* const to = raw + std::uint64_t{before} * args.k;
        for (std::uint32_t i = threadIdx.x % kWarp; i < own.count; i += kWarp) to[i] = own.values[i];
      });
}

// When chunks have chosen: levels, places, codes and raw chunks; the residual keeps what they lose. All
// sections are then there.
core::Status write_loco_records(const LocoEncode& args, Stream stream) {
  const Grid chunks = grid_of_chunks(args.chosen.plan);
  const Grid frames = one_thread_each(args.chosen.plan.frames, kLocoThreads);
  GEOCOMM_RETURN_IF_ERROR(launch(begin_frames, frames, stream, args));
  GEOCOMM_RETURN_IF_ERROR(launch(write_records, chunks, stream, args));
  return launch(finish_frames, Grid{args.chosen.plan.frames, kLocoThreads}, stream, args);
}

// Received frames: checked, then put to their places.

// A warp per frame. Behind a verdict, or in a frame of None, nothing has any bytes.
__global__ void __launch_bounds__(kWarp) expect(LocoDecode args) {
  const std::uint32_t frame = blockIdx.x;
  if (threadIdx.x == 0) {
    for (std::uint32_t s = 0; s < LocoSection::Count; ++s) args.sections.section(frame, s) = {};
    args.ks[frame] = 0;
    args.sections.section(frame, LocoSection::Head).bytes = sizeof(LocoHead);
  }
  __syncwarp();
  walk_sections(args.frames, args.sections, frame, LocoSection::Head, LocoSection::Records);
}

__device__ void read_head(const LocoDecode& args, std::uint32_t frame) {
  const std::uint8_t* from = args.sections.section(frame, LocoSection::Head).content;
  if (from == nullptr) return;
  const std::uint32_t k = load_u16(from);
  if (k < 1 || k > kLocoMaxK || load_u16(from + 2) != 0) {
    report(args.frames.verdict, Fault::LocoHead, frame);
    return;
  }
  args.ks[frame] = k;
  args.sections.section(frame, LocoSection::Records).bytes =
      records_bytes_of(k, args.frames.plan.extent(frame).elements);
}

// A warp per frame.
__global__ void __launch_bounds__(kWarp) read(LocoDecode args) {
  const std::uint32_t frame = blockIdx.x;
  if (is_over_for_warp(args.frames.verdict)) return;
  if (threadIdx.x == 0) read_head(args, frame);
  __syncwarp();
  walk_sections(args.frames, args.sections, frame, LocoSection::Records, LocoSection::Raw);
}

// A block per frame.
__device__ void check_levels_of(const LocoDecode& args, std::uint32_t frame) {
  const std::uint32_t k = args.ks[frame];
  if (k == 0) return;
  const std::uint32_t elements = args.frames.plan.extent(frame).elements;
  const std::uint32_t chunks = (elements + kTopKChunk - 1) / kTopKChunk;
  const std::uint8_t* records = args.sections.section(frame, LocoSection::Records).content;
  std::uint32_t* raw_before = args.raw_before + std::uint64_t{frame} * args.chunks_per_frame;
  std::uint32_t raw_values = 0;
  for (std::uint32_t first = 0; first < chunks; first += kLocoThreads) {
    const std::uint32_t chunk = first + threadIdx.x;
    std::uint32_t own = 0;
    if (chunk < chunks) {
      const std::uint8_t* levels = records + std::uint64_t{chunk} * record_bytes_of(k);
      const std::uint32_t low = load_u16(levels);
      if (low > kRawScale || load_u16(levels + 2) >= kRawScale) {
        report(args.frames.verdict, Fault::Scale, frame);
      }
      const std::uint32_t left = elements - chunk * kTopKChunk;
      if (low == kRawScale) own = loco_share(k, left < kTopKChunk ? left : kTopKChunk);
    }
    std::uint32_t all;
    const std::uint32_t before = sum_before<kLocoThreads>(own, all);
    if (chunk < chunks) raw_before[chunk] = raw_values + before;
    raw_values += all;
  }
  if (threadIdx.x == 0) {
    args.sections.section(frame, LocoSection::Raw).bytes =
        raw_values * static_cast<std::uint32_t>(sizeof(float));
  }
}

__global__ void __launch_bounds__(kLocoThreads) check_levels(LocoDecode args) {
  if (is_over_for_block(args.frames.verdict)) return;
  check_levels_of(args, blockIdx.x);
  __syncthreads();
  if (threadIdx.x < kWarp) {
    walk_sections(args.frames, args.sections, blockIdx.x, LocoSection::Raw, LocoSection::Count);
  }
}

// A chunk's record.
struct Received {
  LocoChunk chunk;
  PlaceShape shape;
  const std::uint8_t* record;

  __device__ __forceinline__ const std::uint8_t* places() const { return record + sizeof(LocoLevels); }
  // Two bytes can always be read, since there are codes behind the places.
  __device__ __forceinline__ std::uint32_t low(std::uint32_t index) const {
    if (shape.low_bits == 0) return 0;
    const std::uint32_t at = index * shape.low_bits;
    const std::uint8_t* from = places() + at / 8;
    std::uint32_t bits = load_u16(from);
    if (at % 8 + shape.low_bits > 16) bits |= std::uint32_t{from[2]} << 16;
    return bits >> at % 8 & ((1u << shape.low_bits) - 1);
  }
  // Of the unary part the bits that lie in this byte of the places.
  __device__ __forceinline__ std::uint32_t ones(std::uint32_t byte) const {
    if (byte >= shape.bytes) return 0;
    const std::uint32_t bits = places()[byte];
    return byte == shape.highs_at / 8 ? bits & ~0u << shape.highs_at % 8 : bits;
  }
};

// run(index, place, follows) for each of `shape.count` places, in lanes in order of the bytes that have their
// ones. `follows`: they share what is above their low bits with the place before.
template <typename Run>
__device__ void for_places(const Received& own, Run&& run) {
  const unsigned lane = threadIdx.x % kWarp;
  const std::uint32_t first = own.shape.highs_at / 8;
  std::uint32_t before = 0;  // ones in bytes before
  bool has_last = false;     // whether the bit before is one
  for (std::uint32_t row = first; row < own.shape.bytes; row += kWarp) {
    const std::uint32_t byte = row + lane;
    std::uint32_t ones = own.ones(byte);
    const auto own_ones = static_cast<std::uint32_t>(__popc(ones));
    std::uint32_t index = before + warp_sum_before(own_ones);
    before = __shfl_sync(kFullMask, index + own_ones, kWarp - 1);
    const std::uint32_t up = __shfl_up_sync(kFullMask, ones, 1);
    const std::uint32_t pattern = ones << 1 | (lane == 0 ? (has_last ? 1u : 0u) : up >> 7);
    has_last = __shfl_sync(kFullMask, ones, kWarp - 1) >> 7 != 0;
    for (; ones != 0; ones &= ones - 1, ++index) {
      const auto bit = static_cast<std::uint32_t>(__ffs(static_cast<int>(ones))) - 1;
      const std::uint32_t high = 8 * byte + bit - own.shape.highs_at - index;
      run(index, high << own.shape.low_bits | own.low(index), (pattern >> bit & 1) != 0);
    }
  }
}

__device__ bool find_record(const LocoDecode& args, Received& own) {
  if (!find_chunk(args.frames.plan, own.chunk)) return false;
  const std::uint32_t k = args.ks[own.chunk.frame];
  if (k == 0) return false;
  own.shape = shape_of(own.chunk.length, loco_share(k, own.chunk.length));
  own.record = args.sections.section(own.chunk.frame, LocoSection::Records).content +
               std::uint64_t{own.chunk.index} * record_bytes_of(k);
  return true;
}

__global__ void __launch_bounds__(kLocoThreads) check_places(LocoDecode args) {
  if (is_over_for_warp(args.frames.verdict)) return;
  Received own;
  if (!find_record(args, own)) return;
  // As many ones as places, none of them behind the last bit: only then the rest may be looked at.
  std::uint32_t found = 0;
  for (std::uint32_t byte = own.shape.highs_at / 8 + threadIdx.x % kWarp; byte < own.shape.bytes;
       byte += kWarp) {
    found += static_cast<std::uint32_t>(__popc(own.ones(byte)));
  }
  const std::uint32_t padding = 8 * own.shape.bytes - own.shape.highs_at - own.shape.high_bits;
  bool is_sound = __reduce_add_sync(kFullMask, found) == own.shape.count &&
                  own.ones(own.shape.bytes - 1) >> (8 - padding) == 0;
  if (is_sound) {
    for_places(own, [&](std::uint32_t index, std::uint32_t place, bool follows) {
      is_sound = is_sound && place < own.chunk.length && !(follows && own.low(index - 1) >= own.low(index));
    });
  }
  if (!is_sound) report(args.frames.verdict, Fault::Places, own.chunk.frame);
}

template <Sink kSink>
__global__ void __launch_bounds__(kLocoThreads) put_values(LocoDecode args) {
  if (is_over_for_warp(args.frames.verdict)) return;
  Received own;
  if (!find_record(args, own)) return;
  const Levels levels{load_u16(own.record), load_u16(own.record + 2)};
  const std::uint8_t* codes = own.places() + own.shape.bytes;
  const std::uint8_t* raw =
      args.sections.section(own.chunk.frame, LocoSection::Raw).content +
      std::uint64_t{
          args.raw_before[std::uint64_t{own.chunk.frame} * args.chunks_per_frame + own.chunk.index]} *
          sizeof(float);
  std::uint8_t* dst = args.frames.elements(own.chunk.frame);
  for_places(own, [&](std::uint32_t index, std::uint32_t place, bool) {
    const float value = levels.low == kRawScale
                            ? __uint_as_float(load_u32(raw + std::uint64_t{index} * sizeof(float)))
                            : levels.value(codes[index / 4] >> 2 * (index % 4));
    put_value<kSink>(dst, own.chunk.begin + place, value);
  });
}

SectionShape encoding_shape(const LocoLayout& layout) {
  SectionShape shape;
  shape.count = LocoSection::Count;
  shape.bytes[LocoSection::Head] = sizeof(LocoHead);
  shape.bytes[LocoSection::Records] = static_cast<std::uint32_t>(layout.bytes() - sizeof(LocoHead));
  shape.bytes[LocoSection::Raw] = static_cast<std::uint32_t>(layout.values() * sizeof(float));
  return shape;
}

LocoEncode take_encoding(const CodecSpec& spec, const PayloadPlan& plan, SpaceCutter& room) {
  LocoEncode args{};
  const LocoLayout layout = loco_layout(spec, plan.largest().elements);
  TopKEncodeSpace& space = args.chosen.space;
  space.chunks_per_frame = static_cast<std::uint32_t>(layout.chunks());
  space.chunk_limit = static_cast<std::uint32_t>(layout.k());
  space.values_per_frame = static_cast<std::uint32_t>(layout.values());
  const std::uint64_t values = std::uint64_t{plan.frames} * layout.values();
  space.chunks = room.take<ChunkRecord>(std::uint64_t{plan.frames} * layout.chunks());
  space.values = room.take<float>(values);
  space.places = room.take<std::uint32_t>(values);
  args.k = space.chunk_limit;
  args.raw_values = room.take<std::uint32_t>(plan.frames);
  space.sections = take_section_space(encoding_shape(layout), plan, false, room);
  return args;
}

LocoDecode take_decoding(const PayloadPlan& plan, SpaceCutter& room) {
  LocoDecode args{};
  args.chunks_per_frame = parts_of(plan.largest().elements, kTopKChunk);
  args.ks = room.take<std::uint32_t>(plan.frames);
  args.raw_before = room.take<std::uint32_t>(std::uint64_t{plan.frames} * args.chunks_per_frame);
  // What is received is read where it lies.
  SectionShape shape;
  shape.count = LocoSection::Count;
  shape.is_received = true;
  args.sections = take_section_space(shape, plan, false, room);
  return args;
}

void take_room(const CodecSpec& spec, core::DType, const PayloadPlan& plan, Direction direction,
               SpaceCutter& room) {
  if (direction == Direction::Encode) {
    take_encoding(spec, plan, room);
  } else {
    take_decoding(plan, room);
  }
}

core::Status encode(const EncodeRun& run) {
  SpaceCutter room(run.input.workspace.room);
  LocoEncode args = take_encoding(run.spec, run.input.plan, room);
  args.chosen.src = run.input.src;
  args.chosen.residual = run.input.residual;
  args.chosen.plan = run.input.plan;
  GEOCOMM_RETURN_IF_ERROR(choose_elements(run.dtype, args.chosen, run.stream));
  GEOCOMM_RETURN_IF_ERROR(write_loco_records(args, run.stream));
  return place_sections(run, args.chosen.space.sections, PlainFrames::None);
}

core::Status check(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  LocoDecode args = take_decoding(run.args.plan, room);
  args.frames = run.args;
  const std::uint32_t frames = run.args.plan.frames;
  GEOCOMM_RETURN_IF_ERROR(launch(expect, Grid{frames, kWarp}, run.stream, args));
  GEOCOMM_RETURN_IF_ERROR(launch(read, Grid{frames, kWarp}, run.stream, args));
  GEOCOMM_RETURN_IF_ERROR(launch(check_levels, Grid{frames, kLocoThreads}, run.stream, args));
  return launch(check_places, grid_of_chunks(run.args.plan), run.stream, args);
}

core::Status put(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  LocoDecode args = take_decoding(run.args.plan, room);
  args.frames = run.part();
  GEOCOMM_RETURN_IF_ERROR(fill_unchosen(args.frames, run.stream));
  return with_sink(args.frames.sink, [&]<Sink kSink>() {
    return launch(put_values<kSink>, grid_of_chunks(args.frames.plan), run.stream, args);
  });
}

}  // namespace

const CodecFamily kLocoFamily{true, false, take_room, encode, check, put};

}  // namespace geocomm::codec::cuda
