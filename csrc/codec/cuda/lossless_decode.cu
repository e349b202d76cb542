#include "codec/cuda/byte_planes.cuh"
#include "codec/cuda/element_access.cuh"
#include "codec/cuda/kept_rows.cuh"
#include "codec/cuda/lossless_run.cuh"
#include "codec/cuda/sections.cuh"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {
namespace {

// Of a frame that is not of None.
__device__ __forceinline__ LowerHalves mode_of(const LosslessSpace& space, std::uint32_t frame) {
  return static_cast<LowerHalves>(*space.sections.section(frame, kMode).content);
}

// The frame's first byte is there: no payload is smaller than two.
__device__ void name_sections(const Decode& args, const LosslessSpace& space, std::uint32_t frame) {
  const std::uint32_t mode = *args.payload_of(frame);
  const auto most = args.dtype == core::DType::Float32 ? LowerHalves::All : LowerHalves::None;
  if (mode > static_cast<std::uint32_t>(most)) {
    report(args.verdict, Fault::Code, frame);
    return;
  }
  const auto lower = static_cast<LowerHalves>(mode);
  const std::uint32_t elements = args.plan.extent(frame).elements;
  const SectionSpace& sections = space.sections;
  sections.section(frame, kMode).bytes = 1;
  sections.section(frame, kHigh).bytes = elements;
  sections.section(frame, kLow).bytes = elements;
  sections.section(frame, kLowerBitmap).bytes = lower == LowerHalves::NotZero ? (elements + 7) / 8 : 0;
  sections.section(frame, kLowerHigh).bytes = lower == LowerHalves::All ? elements : 0;
  sections.section(frame, kLowerLow).bytes = lower == LowerHalves::All ? elements : 0;
}

// A warp per frame. Sections from `end` on have sizes that the bitmap will tell.
__global__ void __launch_bounds__(kWarp) walk(Decode args, LosslessSpace space, std::uint32_t end) {
  const std::uint32_t frame = blockIdx.x;
  if (is_over_for_warp(args.verdict)) return;
  if (threadIdx.x == 0 && args.workspace.records[frame].is_plain == 0) name_sections(args, space, frame);
  __syncwarp();
  walk_sections(args, space.sections, frame, kMode, end);
}

// A word of the bitmap for each lane.
static_assert(kRunElements == 32 * kWarp);
__global__ void __launch_bounds__(kRunThreads) count(Decode args, LosslessSpace space) {
  if (is_over_for_warp(args.verdict)) return;
  RunPlace place;
  if (!find_run(args.plan, space, place)) return;
  if (args.workspace.records[place.frame].is_plain != 0) return;
  if (mode_of(space, place.frame) != LowerHalves::NotZero) return;
  const std::uint8_t* bitmap = space.sections.section(place.frame, kLowerBitmap).content + place.first / 8;
  const unsigned at = 32 * (threadIdx.x % kWarp);
  std::uint32_t bits = 0;
  if (at < place.length) {
    const unsigned elements = place.length - at < 32 ? place.length - at : 32;
    bits = load_bits(bitmap + at / 8, elements);
    if (elements < 32 && bits >> elements != 0) report(args.verdict, Fault::Bitmap, place.frame);
  }
  const unsigned kept = __reduce_add_sync(kFullMask, static_cast<unsigned>(__popc(bits)));
  if (threadIdx.x % kWarp == 0) space.runs[place.slot] = kept;
}

// A block of threads per frame.
__global__ void __launch_bounds__(kRunThreads) find_runs(Decode args, LosslessSpace space) {
  const std::uint32_t frame = blockIdx.x;
  if (is_over_for_block(args.verdict)) return;
  if (args.workspace.records[frame].is_plain == 0 && mode_of(space, frame) == LowerHalves::NotZero) {
    const std::uint32_t kept = scan_runs(space, frame, args.plan.extent(frame).elements);
    if (threadIdx.x == 0) {
      space.sections.section(frame, kLowerHigh).bytes = kept;
      space.sections.section(frame, kLowerLow).bytes = kept;
    }
    __syncthreads();
  }
  if (threadIdx.x < kWarp) walk_sections(args, space.sections, frame, kLowerHigh, kLosslessSections);
}

// Four whole elements to the sink; to their own dtype they go bit for bit.
template <core::DType kType, Sink kSink>
__device__ __forceinline__ void put_words(const Words& words, std::uint8_t* dst, std::uint64_t element,
                                          unsigned count) {
  if constexpr (kSink == Sink::Float16 || kSink == Sink::BFloat16) {
    auto* to = reinterpret_cast<std::uint16_t*>(dst) + element;
    if (count == 4 && is_aligned(to, 8)) {
      *reinterpret_cast<uint2*>(to) = {words.w[0] | words.w[1] << 16, words.w[2] | words.w[3] << 16};
      return;
    }
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      if (c < count) to[c] = static_cast<std::uint16_t>(words.w[c]);
    }
  } else {
    Quad values;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if constexpr (kType == core::DType::Float32) {
        values.v[c] = __uint_as_float(words.w[c]);
      } else {
        values.v[c] = widen<kType>(static_cast<std::uint16_t>(words.w[c]));
      }
    }
    put_quad<kSink>(dst, element, values, count);
  }
}

template <core::DType kType, Sink kSink>
__global__ void __launch_bounds__(kRunThreads) join(Decode args, LosslessSpace space) {
  if (is_over_for_warp(args.verdict)) return;
  RunPlace place;
  if (!find_run(args.plan, space, place)) return;
  std::uint8_t* dst = args.elements(place.frame);
  if (args.workspace.records[place.frame].is_plain != 0) {
    const std::uint8_t* plain =
        args.payload_of(place.frame) + std::uint64_t{place.first} * args.plan.element_bytes;
    for (unsigned row = 0; row < place.rows(); ++row) {
      put_plain<kSink>(kType, plain + std::uint64_t{place.at(row)} * args.plan.element_bytes, dst,
                       place.first + place.at(row), place.count(row));
    }
    return;
  }
  const auto content = [&](std::uint32_t section) {
    return space.sections.section(place.frame, section).content;
  };
  const std::uint8_t* high = content(kHigh) + place.first;
  const std::uint8_t* low = content(kLow) + place.first;
  const LowerHalves lower = kType == core::DType::Float32 ? mode_of(space, place.frame) : LowerHalves::None;
  const std::uint8_t* bitmap = content(kLowerBitmap) + place.first / 8;
  std::uint32_t taken = lower == LowerHalves::NotZero ? space.runs[place.slot] : place.first;
  for (unsigned row = 0; row < place.rows(); ++row) {
    const unsigned at = place.at(row);
    const unsigned count = place.count(row);
    const std::uint32_t four_high = load_bytes(high + at, count);
    const std::uint32_t four_low = load_bytes(low + at, count);
    Words words;
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      const std::uint32_t word = rotated_right(word_of(four_high, four_low, c));
      words.w[c] = kType == core::DType::Float32 ? word << 16 : word;
    }
    if constexpr (kType == core::DType::Float32) {
      if (lower == LowerHalves::All) {
        const std::uint32_t lower_high = load_bytes(content(kLowerHigh) + taken + at, count);
        const std::uint32_t lower_low = load_bytes(content(kLowerLow) + taken + at, count);
#pragma unroll
        for (unsigned c = 0; c < 4; ++c) words.w[c] |= word_of(lower_high, lower_low, c);
      } else if (lower == LowerHalves::NotZero) {
        unsigned nibble = 0;
        if (count > 0) nibble = static_cast<unsigned>(bitmap[at / 8]) >> at % 8 & 0xFu;
        const KeptRow kept = count_kept(nibble, kWarp);
        std::uint32_t from = taken + kept.before;
#pragma unroll
        for (unsigned c = 0; c < 4; ++c) {
          if ((nibble >> c & 1u) == 0) continue;
          words.w[c] |= std::uint32_t{content(kLowerHigh)[from]} << 8 | content(kLowerLow)[from];
          ++from;
        }
        taken += kept.total;
      }
    }
    if (count > 0) {
      put_words<kType, kSink>(words, dst, place.first + at, count);
    }
  }
}

// Elements of 16 bits go to their own dtype, or to floats.
template <core::DType kType>
core::Status launch_join(const Decode& args, const LosslessSpace& space, Stream stream) {
  const Grid grid = grid_of_runs(args.plan, space);
  if (args.sink == Sink::Float32) return launch(join<kType, Sink::Float32>, grid, stream, args, space);
  if (args.sink == Sink::AddToFloat32) {
    return launch(join<kType, Sink::AddToFloat32>, grid, stream, args, space);
  }
  return launch(join<kType, sink_of(kType)>, grid, stream, args, space);
}

}  // namespace

core::Status walk_lossless_sections(const Decode& args, const LosslessSpace& space, std::uint32_t end,
                                    Stream stream) {
  return launch(walk, Grid{args.plan.frames, kWarp}, stream, args, space, end);
}

core::Status count_lower_halves(const Decode& args, const LosslessSpace& space, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(launch(count, grid_of_runs(args.plan, space), stream, args, space));
  return launch(find_runs, Grid{args.plan.frames, kRunThreads}, stream, args, space);
}

core::Status join_words(const Decode& args, const LosslessSpace& space, Stream stream) {
  return with_compressible(args.dtype,
                           [&]<core::DType kType>() { return launch_join<kType>(args, space, stream); });
}

}  // namespace geocomm::codec::cuda
