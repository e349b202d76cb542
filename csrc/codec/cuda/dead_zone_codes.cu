// The codes of DeadZone and BitPlanes: each block's among those of its frame, and as planes of bits.
#include "codec/cuda/block_place.cuh"
#include "codec/cuda/device.h"
#include "codec/cuda/huffman.cuh"
#include "codec/cuda/planes.cuh"
#include "codec/cuda/sections.cuh"
#include "codec/cuda/stages.h"
#include "codec/cuda/verdict.h"
#include "codec/quantizers/block/block_scale.h"

namespace geocomm::codec::cuda {

// Where each block's codes and raw elements lie among those of its frame, found from their counts; and their
// way there.

namespace {

constexpr unsigned kThreads = 256;

__device__ __forceinline__ std::uint32_t bitmap_bytes_of(const FrameExtent& extent) {
  return extent.elements / 8 + (extent.elements % 8 != 0 ? 1 : 0);
}
// By a block of threads: the runs of a frame, of which `codes` are known; sizes of the sections behind them.
__device__ void scan_runs(const PayloadPlan& plan, const DeadZoneSpace& space, std::uint32_t frame,
                          const std::uint8_t* steps) {
  const FrameExtent extent = plan.extent(frame);
  std::uint32_t codes = 0;
  std::uint32_t raw = 0;
  for (std::uint32_t first = 0; first < extent.blocks; first += kThreads) {
    const std::uint32_t index = first + threadIdx.x;
    const bool is_there = index < extent.blocks;
    const bool is_raw = is_there && load_u16(steps + 2 * index) == kRawScale;
    std::uint32_t codes_total;
    std::uint32_t raw_total;
    const std::uint32_t codes_before =
        sum_before<kThreads>(is_there ? space.run(plan, frame, index).codes : 0u, codes_total);
    const std::uint32_t raw_before =
        sum_before<kThreads>(is_raw ? length_of_block(plan, extent, index) : 0u, raw_total);
    if (is_there) {
      DeadZoneRun& run = space.run(plan, frame, index);
      run.codes_at = codes + codes_before;
      run.raw_at = raw + raw_before;
    }
    codes += codes_total;
    raw += raw_total;
  }
  if (threadIdx.x != 0) return;
  space.sections.section(frame, kCodes).bytes = codes;
  space.sections.section(frame, kRawElements).bytes = raw * plan.element_bytes;
}

// A block of threads per frame.
__global__ void __launch_bounds__(kThreads) name_sections(PayloadPlan plan, DeadZoneSpace space) {
  const std::uint32_t frame = blockIdx.x;
  const SectionSpace& sections = space.sections;
  scan_runs(plan, space, frame, sections.content(frame, kSteps));
  if (threadIdx.x != 0) return;
  const FrameExtent extent = plan.extent(frame);
  sections.name(frame, kSteps, extent.codes_at);
  sections.name(frame, kBitmap, bitmap_bytes_of(extent));
  for (std::uint32_t s = kSigns; s <= kFours; ++s) sections.section(frame, s) = {};
  sections.section(frame, kCodes).content = sections.content(frame, kCodes);
  sections.section(frame, kRawElements).content = nullptr;
  name_planes(sections, frame, false);
}

// A warp per block, or per two.
__global__ void __launch_bounds__(kBlockThreads) gather(ElementEncode args, DeadZoneSpace space) {
  BlockPlace place;
  if (!find_block(args.plan, std::uint64_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp, place)) return;
  if (place.length == 0) return;
  const DeadZoneRun run = space.run(args.plan, place.frame, place.index);
  copy_bytes(space.sections.content(place.frame, kCodes) + run.codes_at,
             space.packed + place.frame * space.packed_bytes + std::uint64_t{place.index} * args.plan.block,
             run.codes, place.u, place.lanes);
}

template <core::DType kType, bool kFeedback>
__global__ void __launch_bounds__(kBlockThreads) write_raw(ElementEncode args, DeadZoneSpace space) {
  if (args.workspace.state->irregular == 0) return;
  const std::uint64_t warps = std::uint64_t{gridDim.x} * kBlockWarps;
  std::uint64_t warp = std::uint64_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
  BlockPlace place;
  for (; find_block(args.plan, warp, place); warp += warps) {
    if (place.length == 0) continue;
    const std::uint8_t* steps = space.sections.content(place.frame, kSteps);
    if (load_u16(steps + 2 * place.index) != kRawScale) continue;
    const std::uint64_t raw_at = space.run(args.plan, place.frame, place.index).raw_at;
    std::uint8_t* to = args.placed(place.frame) + sizeof(FrameHeader) +
                       space.sections.section(place.frame, kRawElements).at + raw_at * kElementBytes<kType>;
    write_raw_block<kType, kFeedback>(args, place, to);
  }
}

// A warp per frame.
__global__ void __launch_bounds__(kWarp) walk_blocks(Decode args, DeadZoneSpace space) {
  const std::uint32_t frame = blockIdx.x;
  if (threadIdx.x == 0) {
    const FrameExtent extent = args.plan.extent(frame);
    space.sections.section(frame, kSteps).bytes = extent.codes_at;
    space.sections.section(frame, kBitmap).bytes = bitmap_bytes_of(extent);
    for (std::uint32_t s = kSigns; s <= kFours; ++s) space.sections.section(frame, s).bytes = 0;
  }
  __syncwarp();
  walk_sections(args, space.sections, frame, kSteps, kSigns);
}

// Steps in range, and no bits of raw blocks or beyond the last element; counts the codes.
__global__ void __launch_bounds__(kBlockThreads) check(Decode args, DeadZoneSpace space) {
  if (is_over_for_warp(args.verdict)) return;
  BlockPlace place;
  if (!find_block(args.plan, std::uint64_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp, place)) return;
  const bool is_there = place.length > 0 && args.workspace.records[place.frame].is_plain == 0;
  unsigned count = 0;
  bool beyond = false;
  if (is_there) {
    const std::uint8_t* bitmap = space.sections.section(place.frame, kBitmap).content +
                                 std::uint64_t{place.index} * (args.plan.block / 8);
    for (unsigned at = 32 * place.u; at < place.length; at += 32 * place.lanes) {
      const unsigned elements = place.length - at < 32 ? place.length - at : 32;
      const std::uint32_t bits = load_bits(bitmap + at / 8, elements);
      count += static_cast<unsigned>(__popc(bits));
      beyond = beyond || (elements < 32 && bits >> elements != 0);
    }
  }
  count = reduce_lanes(count, place.lanes, [](unsigned a, unsigned b) { return a + b; });
  if (beyond) report(args.verdict, Fault::Bitmap, place.frame);
  if (place.u != 0 || !is_there) return;
  space.run(args.plan, place.frame, place.index).codes = count;
  const std::uint32_t step =
      load_u16(space.sections.section(place.frame, kSteps).content + 2 * std::uint64_t{place.index});
  if (step == kRawScale) {
    if (count != 0) report(args.verdict, Fault::Bitmap, place.frame);
  } else if (step < kMinScaleBits || step > kMaxStep) {
    report(args.verdict, Fault::Scale, place.frame);
  }
}

// A block of threads per frame. Of BitPlanes only the sizes of the first two planes are known then.
__global__ void __launch_bounds__(kThreads) find_runs(Decode args, DeadZoneSpace space, bool has_planes) {
  const std::uint32_t frame = blockIdx.x;
  const SectionSpace& sections = space.sections;
  if (is_over_for_block(args.verdict)) return;
  if (args.workspace.records[frame].is_plain == 0) {
    scan_runs(args.plan, space, frame, sections.section(frame, kSteps).content);
    if (has_planes && threadIdx.x == 0) {
      const std::uint32_t count = sections.section(frame, kCodes).bytes;
      space.count(frame, kTwos) = count;
      sections.section(frame, kSigns).bytes = (count + 7) / 8;
      sections.section(frame, kTwos).bytes = (count + 7) / 8;
    }
    __syncthreads();
  }
  if (threadIdx.x < kWarp) {
    walk_sections(args, sections, frame, kSigns, has_planes ? kTwos + 1u : kDeadZoneSections);
  }
}

}  // namespace

core::Status gather_dead_zone_codes(const ElementEncode& args, const DeadZoneSpace& space, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(launch(name_sections, Grid{args.plan.frames, kThreads}, stream, args.plan, space));
  return launch(gather, grid_of_warps(warps_of(args.plan)), stream, args, space);
}

core::Status write_dead_zone_raw(core::DType dtype, const ElementEncode& args, const DeadZoneSpace& space,
                                 Stream stream) {
  const Grid grid{persistent_blocks(grid_of_warps(warps_of(args.plan)).blocks, 8), kBlockThreads};
  return with_values(dtype, args.residual, [&]<core::DType kType, bool kFeedback>() {
    return launch(write_raw<kType, kFeedback>, grid, stream, args, space);
  });
}

core::Status walk_dead_zone_blocks(const Decode& args, const DeadZoneSpace& space, Stream stream) {
  return launch(walk_blocks, Grid{args.plan.frames, kWarp}, stream, args, space);
}

core::Status check_dead_zone_blocks(const Decode& args, const DeadZoneSpace& space, bool has_planes,
                                    Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(launch(check, grid_of_warps(warps_of(args.plan)), stream, args, space));
  return launch(find_runs, Grid{args.plan.frames, kThreads}, stream, args, space, has_planes);
}

// The codes of BitPlanes: those of a frame, as DeadZone has them, to planes of bits and back. A block of
// threads has a frame, and goes through it a tile at a time.

namespace {

constexpr unsigned kPlaneThreads = 512;
constexpr unsigned kOwn = 8;  // codes of a thread in a tile, whose bits are a byte
constexpr unsigned kTile = kPlaneThreads * kOwn;

__device__ __forceinline__ std::uint32_t bytes_of_bits(std::uint32_t count) {
  return (count + 7) / 8;
}

// For all threads of the block alike, whatever other blocks report meanwhile.
__device__ bool has_codes(const Decode& args, std::uint32_t frame) {
  __shared__ bool has;
  if (threadIdx.x == 0) has = *args.verdict == 0 && args.workspace.records[frame].is_plain == 0;
  __syncthreads();
  return has;
}

// Writes bits of magnitudes above `least`, and of codes below 0 if `signs` are asked for. These magnitudes
// end up at the front of `codes`, closed up: where a tile's go has been read. Returns how many they are.
__device__ std::uint32_t peel(std::uint8_t* codes, std::uint32_t count, int least, std::uint8_t* signs,
                              std::uint8_t* bits) {
  std::uint32_t end = 0;
  for (std::uint32_t first = 0; first < count; first += kTile) {
    const std::uint32_t at = first + kOwn * threadIdx.x;
    std::uint8_t magnitudes[kOwn];
    unsigned negative = 0;
    unsigned larger = 0;
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      const int code = at + k < count ? static_cast<std::int8_t>(codes[at + k]) : 0;
      const int magnitude = code < 0 ? -code : code;
      magnitudes[k] = static_cast<std::uint8_t>(magnitude);
      negative |= code < 0 ? 1u << k : 0u;
      larger |= magnitude > least ? 1u << k : 0u;
    }
    if (at < count) {
      if (signs != nullptr) signs[at / 8] = static_cast<std::uint8_t>(negative);
      bits[at / 8] = static_cast<std::uint8_t>(larger);
    }
    std::uint32_t total;
    std::uint32_t to = end + sum_before<kPlaneThreads>(static_cast<std::uint32_t>(__popc(larger)), total);
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      if ((larger >> k & 1u) != 0) codes[to++] = magnitudes[k];
    }
    end += total;
  }
  __syncthreads();
  return end;
}

// The way back, to other memory; the sign of none if there are no `signs`.
__device__ void fill(const std::uint8_t* larger, const std::uint8_t* bits, const std::uint8_t* signs,
                     std::uint32_t count, unsigned least, std::uint8_t* codes) {
  std::uint32_t taken = 0;
  for (std::uint32_t first = 0; first < count; first += kTile) {
    const std::uint32_t at = first + kOwn * threadIdx.x;
    const unsigned own = at < count ? bits[at / 8] : 0u;
    const unsigned negative = at < count && signs != nullptr ? signs[at / 8] : 0u;
    std::uint32_t total;
    std::uint32_t from = taken + sum_before<kPlaneThreads>(static_cast<std::uint32_t>(__popc(own)), total);
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
      if (at + k >= count) continue;
      const unsigned magnitude = (own >> k & 1u) != 0 ? larger[from++] : least;
      codes[at + k] = static_cast<std::uint8_t>((negative >> k & 1u) != 0 ? 0u - magnitude : magnitude);
    }
    taken += total;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kPlaneThreads) split(DeadZoneSpace space) {
  const std::uint32_t frame = blockIdx.x;
  const SectionSpace& sections = space.sections;
  std::uint8_t* codes = sections.content(frame, kCodes);
  std::uint32_t count = sections.section(frame, kCodes).bytes;
  __syncthreads();
  for (std::uint32_t plane = kTwos; plane <= kFours; ++plane) {
    std::uint8_t* bits = sections.content(frame, plane);
    std::uint8_t* signs = plane == kTwos ? sections.content(frame, kSigns) : nullptr;
    if (threadIdx.x == 0) {
      if (signs != nullptr) sections.name(frame, kSigns, bytes_of_bits(count));
      sections.name(frame, plane, bytes_of_bits(count));
    }
    count = peel(codes, count, static_cast<int>(plane - kTwos) + 1, signs, bits);
  }
  if (threadIdx.x != 0) return;
  sections.section(frame, kCodes).bytes = count;
  name_planes(sections, frame, false);
}

// Of a frame that has codes, when the plane is there: checks it, and finds the size of the next.
__device__ void count_larger(const Decode& args, const DeadZoneSpace& space, std::uint32_t frame,
                             std::uint32_t plane) {
  const SectionSpace& sections = space.sections;
  const std::uint32_t count = space.count(frame, plane);
  const std::uint32_t bytes = bytes_of_bits(count);
  const std::uint8_t* bits = sections.section(frame, plane).content;
  std::uint32_t own = 0;
  for (std::uint32_t at = threadIdx.x; at < bytes; at += kPlaneThreads) {
    own += static_cast<std::uint32_t>(__popc(bits[at]));
  }
  std::uint32_t larger;
  sum_before<kPlaneThreads>(own, larger);
  if (threadIdx.x != 0) return;
  const unsigned beyond = count % 8;
  bool is_sound = beyond == 0 || bits[bytes - 1] >> beyond == 0;
  if (plane == kTwos && beyond != 0) {
    is_sound = is_sound && sections.section(frame, kSigns).content[bytes - 1] >> beyond == 0;
  }
  if (!is_sound) report(args.verdict, Fault::Bitmap, frame);
  space.count(frame, plane + 1) = larger;
  sections.section(frame, plane + 1).bytes = plane == kFours ? larger : bytes_of_bits(larger);
}

// The next plane, or all the rest, is found.
__global__ void __launch_bounds__(kPlaneThreads)
    find_next(Decode args, DeadZoneSpace space, std::uint32_t plane) {
  const std::uint32_t frame = blockIdx.x;
  if (has_codes(args, frame)) {
    count_larger(args, space, frame, plane);
    __syncthreads();
  }
  if (threadIdx.x < kWarp) {
    walk_sections(args, space.sections, frame, plane + 1, plane == kFours ? kDeadZoneSections : plane + 2);
  }
}

// All planes are there. The codes take turns in two places, and end up where each block's were packed.
__global__ void __launch_bounds__(kPlaneThreads) join(Decode args, DeadZoneSpace space) {
  const std::uint32_t frame = blockIdx.x;
  const SectionSpace& sections = space.sections;
  if (!has_codes(args, frame)) return;
  const std::uint8_t* larger = sections.section(frame, kCodes).content;
  bool is_beyond = false;
  for (std::uint32_t at = threadIdx.x; at < space.count(frame, kCodes); at += kPlaneThreads) {
    is_beyond = is_beyond || larger[at] < 4 || larger[at] > 127;
  }
  if (is_beyond) report(args.verdict, Fault::Code, frame);
  std::uint8_t* packed = space.packed + frame * space.packed_bytes;
  for (std::uint32_t plane = kFours; plane >= kTwos; --plane) {
    std::uint8_t* to = plane == kThrees ? sections.content(frame, kCodes) : packed;
    fill(larger, sections.section(frame, plane).content,
         plane == kTwos ? sections.section(frame, kSigns).content : nullptr, space.count(frame, plane),
         plane - kTwos + 1, to);
    larger = to;
  }
  if (threadIdx.x == 0) sections.section(frame, kCodes).content = packed;
}

Grid block_per_frame(const PayloadPlan& plan) {
  return {plan.frames, kPlaneThreads};
}

}  // namespace

core::Status split_codes(const ElementEncode& args, const DeadZoneSpace& space, Stream stream) {
  return launch(split, block_per_frame(args.plan), stream, space);
}

core::Status find_codes(const DecodeRun& run, const DeadZoneSpace& space) {
  const Decode& args = run.args;
  GEOCOMM_RETURN_IF_ERROR(decode_sections(run, space.sections, kSigns, kTwos + 1));
  for (std::uint32_t plane = kTwos; plane <= kFours; ++plane) {
    const std::uint32_t end = plane == kFours ? std::uint32_t{kDeadZoneSections} : plane + 2;
    GEOCOMM_RETURN_IF_ERROR(launch(find_next, block_per_frame(args.plan), run.stream, args, space, plane));
    GEOCOMM_RETURN_IF_ERROR(decode_sections(run, space.sections, plane + 1, end));
  }
  return launch(join, block_per_frame(args.plan), run.stream, args, space);
}

}  // namespace geocomm::codec::cuda
