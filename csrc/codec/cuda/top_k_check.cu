// Checks of received frames of TopK, and sums over what comes before in the frame, which tell each tile of
// the index and each raw block of values where its own begin.
#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/sections.cuh"
#include "codec/cuda/top_k_tiles.cuh"
#include "codec/cuda/verdict.h"
#include "codec/quantizers/block/block_layout.h"

namespace geocomm::codec::cuda {
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

}  // namespace geocomm::codec::cuda
