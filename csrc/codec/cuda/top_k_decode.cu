// The kernels of TopK that decode: all is checked, then values are put to their places.
#include <cstdint>

#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/device.h"
#include "codec/cuda/elements.cuh"
#include "codec/cuda/loco.cuh"
#include "codec/cuda/sections.cuh"
#include "codec/cuda/stages.h"
#include "codec/cuda/verdict.h"
#include "codec/quantizers/block/block_layout.h"

namespace geocomm::codec::cuda {

// A tile of a received index, sixteen bytes to each thread of a block, and the values that go with it.

inline constexpr unsigned kTileThreads = kTopKThreads;
inline constexpr unsigned kBytesPerThread = kIndexTile / kTileThreads;
static_assert(kBytesPerThread == sizeof(uint4));

__device__ __forceinline__ bool is_gaps(const TopKHead& head) {
  return head.index_mode == static_cast<std::uint8_t>(IndexMode::Gaps);
}
__device__ __forceinline__ std::uint32_t tiles_of(const TopKHead& head) {
  return (head.index_bytes + kIndexTile - 1) / kIndexTile;
}

// A thread's part of a tile.
struct IndexBytes {
  std::uint32_t words[4];
  std::uint32_t count;  // how many there are; behind them is 0

  __device__ __forceinline__ std::uint32_t byte(unsigned i) const {
    return words[i / 4] >> 8 * (i % 4) & 0xFF;
  }

  // Places that it names, and elements that its gaps pass over.
  __device__ __forceinline__ IndexTile measure(bool as_gaps) const {
    IndexTile sums{0, 0};
#pragma unroll
    for (unsigned i = 0; i < kBytesPerThread; ++i) {
      if (!as_gaps) {
        sums.places += static_cast<unsigned>(__popc(byte(i)));
      } else if (i < count) {
        const std::uint32_t is_place = byte(i) != kLongGap ? 1 : 0;
        sums.places += is_place;
        sums.span += byte(i) + is_place;
      }
    }
    return sums;
  }
};

// `index` has room for whole tiles' words, aligned to 16.
__device__ __forceinline__ IndexBytes load_index(const std::uint8_t* index, std::uint32_t index_bytes,
                                                 std::uint32_t tile) {
  const std::uint32_t at = tile * kIndexTile + threadIdx.x * kBytesPerThread;
  IndexBytes bytes{};
  if (at >= index_bytes) return bytes;
  bytes.count = index_bytes - at < kBytesPerThread ? index_bytes - at : kBytesPerThread;
  const uint4 words = *reinterpret_cast<const uint4*>(index + at);
  const std::uint32_t loaded[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (unsigned w = 0; w < 4; ++w) {
    const std::uint32_t there = bytes.count <= 4 * w ? 0 : bytes.count - 4 * w;
    bytes.words[w] = there >= 4 ? loaded[w] : loaded[w] & ((1u << 8 * there) - 1);
  }
  return bytes;
}

// A block per tile and frame, so many blocks for a frame that all of them fill the device.
inline std::uint32_t blocks_for_tiles(const TopKDecode& args) {
  const std::uint64_t most = std::uint64_t{args.frames.plan.frames} * args.space.tiles_per_frame;
  const std::uint64_t blocks = persistent_blocks(most, 8);
  return static_cast<std::uint32_t>((blocks + args.frames.plan.frames - 1) / args.frames.plan.frames);
}

// Checks of received frames of TopK, and sums over what comes before in the frame, which tell each tile of
// the index and each raw block of values where its own begin.

namespace {

// A warp per frame. Behind a verdict, or in a frame of None, nothing has any bytes.
__global__ void __launch_bounds__(kWarp) expect(TopKDecode args) {
  const std::uint32_t frame = blockIdx.x;
  const SectionSpace& sections = args.space.sections;
  if (threadIdx.x == 0) {
    for (std::uint32_t s = 0; s < TopKSection::Count; ++s) sections.section(frame, s) = {};
    args.space.heads[frame] = {};
    sections.section(frame, TopKSection::Head).bytes = sizeof(TopKHead);
  }
  __syncwarp();
  walk_sections(args.frames, sections, frame, TopKSection::Head, TopKSection::Index);
}

__device__ TopKHead load_head(const std::uint8_t* from) {
  TopKHead head;
  head.count = load_u32(from);
  head.index_bytes = load_u32(from + 4);
  head.index_mode = from[8];
  head.values = from[9];
  head.reserved = static_cast<std::uint16_t>(load_u16(from + 10));
  return head;
}

// As top_k_codec.cc and top_k_places.cc have it.
__device__ bool is_possible(const TopKHead& head, std::uint32_t elements) {
  if (head.index_mode > static_cast<int>(IndexMode::Bitmap) || head.values > static_cast<int>(Values::Bit2)) {
    return false;
  }
  if (head.reserved != 0 || head.count > elements) return false;
  if (head.count == 0) return head.index_bytes == 0;
  if (!is_gaps(head)) return head.index_bytes == (elements + 7) / 8;
  return head.index_bytes >= head.count && head.index_bytes - head.count <= elements / kLongGap;
}

__device__ void read_head(const TopKDecode& args, std::uint32_t frame) {
  const SectionSpace& sections = args.space.sections;
  const std::uint8_t* from = sections.section(frame, TopKSection::Head).content;
  if (from == nullptr) return;
  const TopKHead head = load_head(from);
  if (!is_possible(head, args.frames.plan.extent(frame).elements)) {
    report(args.frames.verdict, Fault::TopKHead, frame);
    return;
  }
  args.space.heads[frame] = head;
  const auto form = static_cast<Values>(head.values);
  const std::uint32_t blocks = (head.count + kValueBlock - 1) / kValueBlock;
  sections.section(frame, TopKSection::Index).bytes = head.index_bytes;
  sections.section(frame, TopKSection::Scales).bytes = blocks * scale_bytes(form);
  sections.section(frame, TopKSection::Packed).bytes = packed_bytes(form, head.count);
  sections.section(frame, TopKSection::Plane).bytes = form == Values::Int8 ? head.count : 0;
}

// A warp per frame.
__global__ void __launch_bounds__(kWarp) read(TopKDecode args) {
  const std::uint32_t frame = blockIdx.x;
  if (is_over_for_warp(args.frames.verdict)) return;
  if (threadIdx.x == 0) read_head(args, frame);
  __syncwarp();
  walk_sections(args.frames, args.space.sections, frame, TopKSection::Index, TopKSection::Raw);
}

// Of a block of `length` values.
struct ScaleCheck {
  std::uint32_t raw_values;
  bool is_sound;
};
__device__ ScaleCheck check_scale(Values form, const std::uint8_t* scale, std::uint32_t length) {
  const std::uint32_t first = load_u16(scale);
  if (first == kRawScale) return {length, true};
  if (form == Values::Int8) return {0, is_valid_scale<CodecId::Int8>(first)};
  return {0, first < kRawScale && load_u16(scale + 2) < kRawScale};
}

// By a block of threads.
__device__ void check_scales_of(const TopKDecode& args, std::uint32_t frame) {
  const TopKHead head = args.space.heads[frame];
  const auto form = static_cast<Values>(head.values);
  if (head.count == 0 || !has_value_blocks(form)) return;
  const std::uint32_t blocks = (head.count + kValueBlock - 1) / kValueBlock;
  const std::uint8_t* from = args.space.sections.section(frame, TopKSection::Scales).content;
  std::uint32_t* raw_before = args.space.raw_before + std::uint64_t{frame} * args.space.blocks_per_frame;
  std::uint32_t raw_values = 0;
  for (std::uint32_t first = 0; first < blocks; first += kTileThreads) {
    const std::uint32_t block = first + threadIdx.x;
    ScaleCheck own{0, true};
    if (block < blocks) {
      const std::uint32_t left = head.count - block * kValueBlock;
      own = check_scale(form, from + std::uint64_t{block} * scale_bytes(form),
                        left < kValueBlock ? left : kValueBlock);
    }
    if (!own.is_sound) report(args.frames.verdict, Fault::Scale, frame);
    std::uint32_t all;
    const std::uint32_t before = sum_before<kTileThreads>(own.raw_values, all);
    if (block < blocks) raw_before[block] = raw_values + before;
    raw_values += all;
  }
  if (threadIdx.x == 0) {
    args.space.sections.section(frame, TopKSection::Raw).bytes =
        raw_values * static_cast<std::uint32_t>(sizeof(float));
  }
}

// A block per frame.
__global__ void __launch_bounds__(kTileThreads) scales(TopKDecode args) {
  if (is_over_for_block(args.frames.verdict)) return;
  check_scales_of(args, blockIdx.x);
  __syncthreads();
  if (threadIdx.x < kWarp) {
    walk_sections(args.frames, args.space.sections, blockIdx.x, TopKSection::Raw, TopKSection::Count);
  }
}

__global__ void __launch_bounds__(kTileThreads)
    measure_tiles(TopKDecode args, std::uint32_t blocks_per_frame) {
  __shared__ IndexTile sums;
  if (is_over_for_block(args.frames.verdict)) return;
  const std::uint32_t frame = blockIdx.x / blocks_per_frame;
  const TopKHead head = args.space.heads[frame];
  const std::uint8_t* index = args.space.sections.section(frame, TopKSection::Index).content;
  IndexTile* tiles = args.space.tiles + std::uint64_t{frame} * args.space.tiles_per_frame;
  for (std::uint32_t tile = blockIdx.x % blocks_per_frame; tile < tiles_of(head); tile += blocks_per_frame) {
    if (threadIdx.x == 0) sums = {0, 0};
    __syncthreads();
    const IndexTile own = load_index(index, head.index_bytes, tile).measure(is_gaps(head));
    const std::uint32_t places = __reduce_add_sync(kFullMask, own.places);
    const std::uint32_t span = __reduce_add_sync(kFullMask, own.span);
    if (threadIdx.x % kWarp == 0) {
      atomicAdd(&sums.places, places);
      atomicAdd(&sums.span, span);
    }
    __syncthreads();
    if (threadIdx.x == 0) tiles[tile] = sums;
  }
}

// A block per frame. A tile's sums fit 32 bits; those of a frame need not, unless it is sound.
__global__ void __launch_bounds__(kTileThreads) place_tiles(TopKDecode args) {
  if (is_over_for_block(args.frames.verdict)) return;
  const std::uint32_t frame = blockIdx.x;
  const TopKHead head = args.space.heads[frame];
  IndexTile* tiles = args.space.tiles + std::uint64_t{frame} * args.space.tiles_per_frame;
  std::uint32_t places = 0;  // at most a byte's 8 of 2^23 bytes, or 1 of each of 2^27
  std::uint64_t span = 0;
  for (std::uint32_t first = 0; first < tiles_of(head); first += kTileThreads) {
    const std::uint32_t tile = first + threadIdx.x;
    IndexTile own{0, 0};
    if (tile < tiles_of(head)) own = tiles[tile];
    std::uint32_t all_places;
    std::uint64_t all_spans;
    const std::uint32_t places_before = sum_before<kTileThreads>(own.places, all_places);
    const std::uint64_t span_before = sum_before<kTileThreads>(std::uint64_t{own.span}, all_spans);
    if (tile < tiles_of(head)) {
      tiles[tile] = {places + places_before, static_cast<std::uint32_t>(span + span_before)};
    }
    places += all_places;
    span += all_spans;
  }
  if (threadIdx.x != 0 || head.count == 0) return;
  const std::uint32_t elements = args.frames.plan.extent(frame).elements;
  const std::uint8_t* index = args.space.sections.section(frame, TopKSection::Index).content;
  const std::uint32_t last_byte = index[head.index_bytes - 1];
  const bool is_sound = is_gaps(head) ? last_byte != kLongGap && span <= elements
                                      : elements % 8 == 0 || last_byte >> elements % 8 == 0;
  if (places != head.count || !is_sound) report(args.frames.verdict, Fault::Places, frame);
}

}  // namespace

core::Status expect_heads(const TopKDecode& args, Stream stream) {
  return launch(expect, Grid{args.frames.plan.frames, kWarp}, stream, args);
}

core::Status read_heads(const TopKDecode& args, Stream stream) {
  return launch(read, Grid{args.frames.plan.frames, kWarp}, stream, args);
}

core::Status check_scales(const TopKDecode& args, Stream stream) {
  return launch(scales, Grid{args.frames.plan.frames, kTileThreads}, stream, args);
}

core::Status check_places(const TopKDecode& args, Stream stream) {
  const std::uint32_t per_frame = blocks_for_tiles(args);
  const Grid grid{std::uint64_t{args.frames.plan.frames} * per_frame, kTileThreads};
  GEOCOMM_RETURN_IF_ERROR(launch(measure_tiles, grid, stream, args, per_frame));
  return launch(place_tiles, Grid{args.frames.plan.frames, kTileThreads}, stream, args);
}

// Frames of TopK, all checked, to elements: first what nobody chose, and frames of None; then what was
// chosen.

namespace {

// Where nothing is added, zeros are put everywhere.
template <Sink kSink>
__global__ void __launch_bounds__(kElementThreads) fill(Decode args) {
  if (is_over_for_thread(args.verdict)) return;
  const ElementTile tile = find_tile(args.plan);
  const FrameRecord& record = args.workspace.records[tile.frame];
  if (record.is_plain == 0 && kSink == Sink::AddToFloat32) return;
  const std::uint8_t* plain = args.payload_of(tile.frame);
  std::uint8_t* dst = args.elements(tile.frame);
#pragma unroll
  for (unsigned round = 0; round < kElementRounds; ++round) {
    const std::uint32_t at = tile.at(round);
    const unsigned count = tile.count(round);
    if (count == 0) break;
    if (record.is_plain != 0) {
      put_plain<kSink>(args.dtype, plain + std::uint64_t{at} * args.plan.element_bytes, dst, at, count);
    } else {
      put_quad<kSink>(dst, at, Quad{}, count);
    }
  }
}

__device__ float float_at(const std::uint8_t* floats, std::uint32_t index) {
  return __uint_as_float(load_u32(floats + std::uint64_t{index} * 4));
}

// What a frame brings, without its stage.
struct ReceivedValues {
  Values form;
  const std::uint8_t* scales;
  const std::uint8_t* codes;
  const std::uint8_t* raw;
  const std::uint32_t* raw_before;

  // Of a raw block.
  __device__ float raw_at(std::uint32_t index) const {
    return float_at(raw, raw_before[index / kValueBlock] + index % kValueBlock);
  }
  __device__ float at(std::uint32_t index) const {
    const std::uint8_t* scale = scales + std::uint64_t{index / kValueBlock} * scale_bytes(form);
    switch (form) {
      case Values::Bf16:
        return bfloat16_bits_to_float(load_u16(codes + std::uint64_t{index} * 2));
      case Values::Int8: {
        const std::uint32_t bits = load_u16(scale);
        if (bits == kRawScale) return raw_at(index);
        const auto code = static_cast<std::int8_t>(codes[index]);
        return __fmul_rn(static_cast<float>(code), bfloat16_bits_to_float(bits));
      }
      case Values::Bit2: {
        const Levels levels{load_u16(scale), load_u16(scale + 2)};
        if (levels.low == kRawScale) return raw_at(index);
        return levels.value(codes[index / 4] >> 2 * (index % 4));
      }
      case Values::Fp32:
        break;
    }
    return float_at(codes, index);
  }
};

__device__ ReceivedValues received_values(const TopKDecode& args, std::uint32_t frame) {
  const SectionSpace& sections = args.space.sections;
  const auto form = static_cast<Values>(args.space.heads[frame].values);
  const std::uint32_t codes = form == Values::Int8 ? TopKSection::Plane : TopKSection::Packed;
  return {form, sections.section(frame, TopKSection::Scales).content, sections.section(frame, codes).content,
          sections.section(frame, TopKSection::Raw).content,
          args.space.raw_before + std::uint64_t{frame} * args.space.blocks_per_frame};
}

template <Sink kSink>
__global__ void __launch_bounds__(kTileThreads) scatter(TopKDecode args, std::uint32_t blocks_per_frame) {
  if (is_over_for_block(args.frames.verdict)) return;
  const std::uint32_t frame = args.frames.plan.first_frame + blockIdx.x / blocks_per_frame;
  const TopKHead head = args.space.heads[frame];
  if (head.count == 0) return;
  const bool as_gaps = is_gaps(head);
  const std::uint8_t* index = args.space.sections.section(frame, TopKSection::Index).content;
  const ReceivedValues values = received_values(args, frame);
  std::uint8_t* dst = args.frames.elements(frame);
  for (std::uint32_t tile = blockIdx.x % blocks_per_frame; tile < tiles_of(head); tile += blocks_per_frame) {
    const IndexTile before = args.space.tiles[std::uint64_t{frame} * args.space.tiles_per_frame + tile];
    const IndexBytes bytes = load_index(index, head.index_bytes, tile);
    const IndexTile own = bytes.measure(as_gaps);
    std::uint64_t all;
    const std::uint64_t in_tile = sum_before<kTileThreads>(std::uint64_t{own.places} << 32 | own.span, all);
    std::uint32_t value = before.places + static_cast<std::uint32_t>(in_tile >> 32);
    std::uint32_t place = as_gaps ? before.span + static_cast<std::uint32_t>(in_tile)
                                  : (tile * kIndexTile + threadIdx.x * kBytesPerThread) * 8;
#pragma unroll
    for (unsigned w = 0; w < kBytesPerThread / 4; ++w) {
      std::uint32_t word = bytes.words[w];
      const std::uint32_t count = bytes.count <= 4 * w ? 0 : bytes.count - 4 * w;
      for (unsigned i = 0; i < 4 && i < count; ++i, word >>= 8) {
        std::uint32_t bits = word & 0xFF;
        if (as_gaps) {
          place += bits;
          if (bits == kLongGap) continue;
          put_value<kSink>(dst, place++, values.at(value++));
        } else {
          for (; bits != 0; bits &= bits - 1) {
            const auto bit = static_cast<std::uint32_t>(__ffs(bits)) - 1;
            put_value<kSink>(dst, place + bit, values.at(value++));
          }
          place += 8;
        }
      }
    }
  }
}

}  // namespace

core::Status fill_unchosen(const Decode& args, Stream stream) {
  return with_sink(args.sink,
                   [&]<Sink kSink>() { return launch(fill<kSink>, grid_of_tiles(args.plan), stream, args); });
}

core::Status put_chosen(const TopKDecode& args, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(fill_unchosen(args.frames, stream));
  return with_sink(args.frames.sink, [&]<Sink kSink>() {
    const std::uint32_t per_frame = blocks_for_tiles(args);
    const Grid tiles{std::uint64_t{args.frames.plan.frames} * per_frame, kTileThreads};
    return launch(scatter<kSink>, tiles, stream, args, per_frame);
  });
}

}  // namespace geocomm::codec::cuda
