#include "codec/cuda/byte_planes.cuh"
#include "codec/cuda/kept_rows.cuh"
#include "codec/cuda/lossless_run.cuh"
#include "codec/cuda/sections.cuh"

namespace geocomm::codec::cuda {
namespace {

// Bit c: the lower half of word c is not zero.
__device__ __forceinline__ unsigned not_zero(const Words& words) {
  unsigned nibble = 0;
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) nibble |= (words.w[c] & 0xFFFFu) != 0 ? 1u << c : 0u;
  return nibble;
}

template <core::DType kType>
__device__ __forceinline__ Words load_row(const ElementEncode& args, const RunPlace& place, unsigned row) {
  const std::uint64_t element = place.first + place.at(row);
  return load_words<kType>(args.elements(place.frame) + element * kElementBytes<kType>, place.count(row));
}

template <core::DType kType>
__global__ void __launch_bounds__(kRunThreads) split(ElementEncode args, LosslessSpace space) {
  RunPlace place;
  if (!find_run(args.plan, space, place)) return;
  const SectionSpace& sections = space.sections;
  std::uint8_t* high = sections.content(place.frame, kHigh) + place.first;
  std::uint8_t* low = sections.content(place.frame, kLow) + place.first;
  std::uint8_t* bitmap = nullptr;
  if constexpr (kType == core::DType::Float32) {
    bitmap = sections.content(place.frame, kLowerBitmap) + place.first / 8;
  }
  std::uint32_t kept = 0;
#pragma unroll 4
  for (unsigned row = 0; row < place.rows(); ++row) {
    const Words words = load_row<kType>(args, place, row);
    const bool is_there = place.count(row) > 0;
    Words upper;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      upper.w[c] = rotated_left(kType == core::DType::Float32 ? words.w[c] >> 16 : words.w[c]);
    }
    if (is_there) {
      *reinterpret_cast<std::uint32_t*>(high + place.at(row)) = high_bytes(upper);
      *reinterpret_cast<std::uint32_t*>(low + place.at(row)) = low_bytes(upper);
    }
    if constexpr (kType == core::DType::Float32) {
      const unsigned nibble = not_zero(words);
      kept += static_cast<unsigned>(__popc(nibble));
      store_bits(nibble, is_there, bitmap + place.at(row) / 8);
    }
  }
  if constexpr (kType == core::DType::Float32) {
    kept = __reduce_add_sync(kFullMask, kept);
    if (threadIdx.x % kWarp == 0) space.runs[place.slot] = kept;
  }
}

// A block of threads per frame.
__global__ void __launch_bounds__(kRunThreads)
    name_sections(ElementEncode args, LosslessSpace space, bool is_float32) {
  const std::uint32_t frame = blockIdx.x;
  const std::uint32_t elements = args.plan.extent(frame).elements;
  const std::uint32_t kept = is_float32 ? scan_runs(space, frame, elements) : 0;
  if (threadIdx.x != 0) return;
  if (args.residual.data != nullptr) args.workspace.records[frame].is_plain = 1;
  // A bitmap costs a sixteenth of all halves.
  const bool is_sparse = 16 * std::uint64_t{kept} <= 15 * std::uint64_t{elements};
  const LowerHalves lower = kept == 0   ? LowerHalves::None
                            : is_sparse ? LowerHalves::NotZero
                                        : LowerHalves::All;
  const std::uint32_t carried = lower == LowerHalves::All ? elements : kept;
  const SectionSpace& sections = space.sections;
  *sections.content(frame, kMode) = static_cast<std::uint8_t>(lower);
  sections.name(frame, kMode, 1);
  sections.name(frame, kHigh, elements);
  sections.name(frame, kLow, elements);
  sections.name(frame, kLowerBitmap, lower == LowerHalves::NotZero ? (elements + 7) / 8 : 0);
  sections.name(frame, kLowerHigh, carried);
  sections.name(frame, kLowerLow, carried);
  name_planes(sections, frame, args.residual.data != nullptr);
}

// The lower halves that the mode carries; the words are loaded again, from where they were.
__global__ void __launch_bounds__(kRunThreads) split_lower(ElementEncode args, LosslessSpace space) {
  __shared__ __align__(16) std::uint8_t kept_high[kRunWarps][kRunElements];
  __shared__ __align__(16) std::uint8_t kept_low[kRunWarps][kRunElements];
  RunPlace place;
  if (!find_run(args.plan, space, place)) return;
  const SectionSpace& sections = space.sections;
  const auto lower = static_cast<LowerHalves>(*sections.content(place.frame, kMode));
  if (lower == LowerHalves::None) return;
  std::uint8_t* high = sections.content(place.frame, kLowerHigh);
  std::uint8_t* low = sections.content(place.frame, kLowerLow);
  if (lower == LowerHalves::All) {
    for (unsigned row = 0; row < place.rows(); ++row) {
      if (place.count(row) == 0) continue;
      const Words words = load_row<core::DType::Float32>(args, place, row);
      *reinterpret_cast<std::uint32_t*>(high + place.first + place.at(row)) = high_bytes(words);
      *reinterpret_cast<std::uint32_t*>(low + place.first + place.at(row)) = low_bytes(words);
    }
    return;
  }
  std::uint8_t* own_high = kept_high[threadIdx.x / kWarp];
  std::uint8_t* own_low = kept_low[threadIdx.x / kWarp];
  unsigned count = 0;
  for (unsigned row = 0; row < place.rows(); ++row) {
    const Words words = load_row<core::DType::Float32>(args, place, row);
    const unsigned nibble = not_zero(words);
    const KeptRow kept = count_kept(nibble, kWarp);
    unsigned at = count + kept.before;
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      if ((nibble >> c & 1u) == 0) continue;
      own_high[at] = static_cast<std::uint8_t>(words.w[c] >> 8);
      own_low[at] = static_cast<std::uint8_t>(words.w[c]);
      ++at;
    }
    count += kept.total;
  }
  __syncwarp();
  const std::uint32_t before = space.runs[place.slot];
  copy_bytes(high + before, own_high, count, threadIdx.x % kWarp, kWarp);
  copy_bytes(low + before, own_low, count, threadIdx.x % kWarp, kWarp);
}

}  // namespace

core::Status split_words(core::DType dtype, const ElementEncode& args, const LosslessSpace& space,
                         Stream stream) {
  return with_compressible(dtype, [&]<core::DType kType>() {
    return launch(split<kType>, grid_of_runs(args.plan, space), stream, args, space);
  });
}

core::Status split_lower_halves(core::DType dtype, const ElementEncode& args, const LosslessSpace& space,
                                Stream stream) {
  const bool is_float32 = dtype == core::DType::Float32;
  GEOCOMM_RETURN_IF_ERROR(
      launch(name_sections, Grid{args.plan.frames, kRunThreads}, stream, args, space, is_float32));
  return is_float32 ? launch(split_lower, grid_of_runs(args.plan, space), stream, args, space)
                    : core::Status::ok();
}

}  // namespace geocomm::codec::cuda
