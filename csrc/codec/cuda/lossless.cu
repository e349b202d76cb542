// Lossless: what encodes, then what decodes. A payload is mode | high | low | bitmap | lower high | lower
// low. The lower halves that are not zero are brought together from runs of elements, a warp each; a scan
// over the frame says where a run's begin.
#include <algorithm>

#include "codec/cuda/codec_family.h"
#include "codec/cuda/device.h"
#include "codec/cuda/elements.cuh"
#include "codec/cuda/planes.cuh"
#include "codec/cuda/sections.cuh"
#include "codec/cuda/verdict.h"
#include "codec/frames/bitmap.h"

namespace geocomm::codec::cuda {

enum LosslessSection : std::uint32_t {
  kMode,
  kHigh,
  kLow,
  kLowerBitmap,
  kLowerHigh,
  kLowerLow,
  kLosslessSections
};

// The mode: which lower halves of words of 32 bits are carried.
enum class LowerHalves : std::uint8_t { None = 0, NotZero = 1, All = 2 };

inline constexpr std::uint32_t kRunElements = 1024;

struct LosslessSpace {
  SectionSpace sections;
  std::uint32_t* runs;  // lower halves carried: of the run, then, of those before it in its frame
  std::uint32_t runs_per_frame;
};

// A warp's run of elements, in rows of four for each lane.

inline constexpr unsigned kRunThreads = 256;
inline constexpr unsigned kRunWarps = kRunThreads / kWarp;
inline constexpr unsigned kRunRow = 4 * kWarp;

struct RunPlace {
  std::uint32_t frame;
  std::uint32_t first;   // element, in the frame
  std::uint32_t length;  // elements
  std::uint64_t slot;    // of the run

  // Of a row's elements, this lane's.
  __device__ __forceinline__ unsigned at(unsigned row) const {
    return row * kRunRow + 4 * (threadIdx.x % kWarp);
  }
  __device__ __forceinline__ unsigned count(unsigned row) const { return four_from(at(row), length); }
  __device__ __forceinline__ unsigned rows() const { return (length + kRunRow - 1) / kRunRow; }
};

// False for the whole warp: there is none.
__device__ __forceinline__ bool find_run(const PayloadPlan& plan, const LosslessSpace& space,
                                         RunPlace& place) {
  place.slot = std::uint64_t{plan.first_frame} * space.runs_per_frame +
               std::uint64_t{blockIdx.x} * kRunWarps + threadIdx.x / kWarp;
  place.frame = static_cast<std::uint32_t>(place.slot / space.runs_per_frame);
  if (place.frame >= plan.first_frame + plan.frames) return false;
  place.first = static_cast<std::uint32_t>(place.slot % space.runs_per_frame) * kRunElements;
  const std::uint32_t elements = plan.extent(place.frame).elements;
  if (place.first >= elements) return false;
  const std::uint32_t left = elements - place.first;
  place.length = left < kRunElements ? left : kRunElements;
  return true;
}

inline Grid grid_of_runs(const PayloadPlan& plan, const LosslessSpace& space) {
  return one_thread_each(std::uint64_t{plan.frames} * space.runs_per_frame * kWarp, kRunThreads);
}

// By a block of threads: makes the counts of a frame's runs those of what comes before, and gives their sum.
__device__ inline std::uint32_t scan_runs(const LosslessSpace& space, std::uint32_t frame,
                                          std::uint32_t elements) {
  const std::uint32_t runs = (elements + kRunElements - 1) / kRunElements;
  std::uint32_t sum = 0;
  for (std::uint32_t first = 0; first < runs; first += kRunThreads) {
    const std::uint32_t index = first + threadIdx.x;
    std::uint32_t& run = space.runs[std::uint64_t{frame} * space.runs_per_frame + index];
    std::uint32_t total;
    const std::uint32_t before = sum_before<kRunThreads>(index < runs ? run : 0u, total);
    if (index < runs) run = sum + before;
    sum += total;
  }
  return sum;
}

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

// The planes of the upper halves (or of 16 bits), and the bitmap; then all sections, those of the lower
// halves as the mode has it. With a residual all frames become ones of None.
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

// Checks the mode, and finds the sections before `end`, from which on the bitmap will say the sizes.
core::Status walk_lossless_sections(const Decode& args, const LosslessSpace& space, std::uint32_t end,
                                    Stream stream) {
  return launch(walk, Grid{args.plan.frames, kWarp}, stream, args, space, end);
}

// The bitmap is there: checks it, and finds the rest.
core::Status count_lower_halves(const Decode& args, const LosslessSpace& space, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(launch(count, grid_of_runs(args.plan, space), stream, args, space));
  return launch(find_runs, Grid{args.plan.frames, kRunThreads}, stream, args, space);
}

// All is there.
core::Status join_words(const Decode& args, const LosslessSpace& space, Stream stream) {
  return with_compressible(args.dtype,
                           [&]<core::DType kType>() { return launch_join<kType>(args, space, stream); });
}

// The room holds the sections, then the counts of the runs. Bitmap and lower halves are those of float32
// alone.

SectionShape shape_of(core::DType dtype, const PayloadPlan& plan, Direction direction) {
  const std::uint32_t elements = plan.largest().elements;
  SectionShape shape{kLosslessSections, 1u << kHigh | 1u << kLow, {}};
  shape.is_received = direction == Direction::Decode;
  shape.bytes[kMode] = 1;
  shape.bytes[kHigh] = elements;
  shape.bytes[kLow] = elements;
  if (dtype == core::DType::Float32) {
    shape.planes |= 1u << kLowerBitmap | 1u << kLowerHigh | 1u << kLowerLow;
    shape.bytes[kLowerBitmap] = static_cast<std::uint32_t>(bitmap_bytes(elements));
    shape.bytes[kLowerHigh] = elements;
    shape.bytes[kLowerLow] = elements;
  }
  return shape;
}

LosslessSpace space_of(const CodecSpec& spec, core::DType dtype, const PayloadPlan& plan, Direction direction,
                       SpaceCutter& room) {
  LosslessSpace space{};
  space.sections =
      take_section_space(shape_of(dtype, plan, direction), plan, spec.entropy != Entropy::None, room);
  space.runs_per_frame = std::max(parts_of(plan.largest().elements, kRunElements), 1u);
  space.runs = room.take<std::uint32_t>(std::uint64_t{plan.frames} * space.runs_per_frame);
  return space;
}

void take_room(const CodecSpec& spec, core::DType dtype, const PayloadPlan& plan, Direction direction,
               SpaceCutter& room) {
  space_of(spec, dtype, plan, direction, room);
}

core::Status encode(const EncodeRun& run) {
  const ElementEncode& input = run.input;
  SpaceCutter room(input.workspace.room);
  const LosslessSpace space = space_of(run.spec, run.dtype, input.plan, Direction::Encode, room);
  GEOCOMM_RETURN_IF_ERROR(split_words(run.dtype, input, space, run.stream));
  GEOCOMM_RETURN_IF_ERROR(split_lower_halves(run.dtype, input, space, run.stream));
  return place_sections(run, space.sections, PlainFrames::NamedOrLonger);
}

core::Status check(const DecodeRun& run) {
  const Decode& args = run.args;
  SpaceCutter room(args.workspace.room);
  const LosslessSpace space = space_of(run.spec, args.dtype, args.plan, Direction::Decode, room);
  const bool is_float32 = args.dtype == core::DType::Float32;
  const std::uint32_t end = is_float32 ? kLowerHigh : kLosslessSections;
  GEOCOMM_RETURN_IF_ERROR(walk_lossless_sections(args, space, end, run.stream));
  GEOCOMM_RETURN_IF_ERROR(decode_sections(run, space.sections, kMode, end));
  if (!is_float32) return core::Status::ok();
  GEOCOMM_RETURN_IF_ERROR(count_lower_halves(args, space, run.stream));
  return decode_sections(run, space.sections, kLowerHigh, kLosslessSections);
}

core::Status put(const DecodeRun& run) {
  SpaceCutter room(run.args.workspace.room);
  return join_words(run.part(), space_of(run.spec, run.args.dtype, run.args.plan, Direction::Decode, room),
                    run.stream);
}

}  // namespace

const CodecFamily kLosslessFamily{true, true, take_room, encode, check, put};

}  // namespace geocomm::codec::cuda
