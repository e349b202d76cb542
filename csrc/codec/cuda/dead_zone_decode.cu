// Frames of DeadZone to elements. All of the payload has been checked before.
#include "codec/cuda/block_coders.cuh"
#include "codec/cuda/block_team.cuh"
#include "codec/cuda/dead_zone_stages.h"
#include "codec/cuda/huffman_device.cuh"
#include "codec/cuda/kept_rows.cuh"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {
namespace {

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

}  // namespace

core::Status decode_dead_zone(const Decode& args, const DeadZoneSpace& space, Stream stream) {
  return with_sink(args.sink, [&]<Sink kSink>() {
    return launch(decode<kSink>, grid_of_teams(args.plan), stream, args, space);
  });
}

}  // namespace geocomm::codec::cuda
