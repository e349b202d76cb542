// Frames of TopK, all checked, to elements: first what nobody chose, and frames of None; then what was
// chosen.
#include "codec/cuda/element_tile.cuh"
#include "codec/cuda/loco_levels.cuh"
#include "codec/cuda/top_k_tiles.cuh"
#include "codec/cuda/verdict.h"
#include "codec/quantizers/block/block_layout.h"

namespace geocomm::codec::cuda {
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
