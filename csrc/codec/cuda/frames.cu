// Frames: their headers, their sizes and places, written behind the encoder and found in received bytes.
#include <algorithm>

#include "codec/cuda/crc32c_device.cuh"
#include "codec/cuda/device.h"
#include "codec/cuda/huffman.cuh"
#include "codec/cuda/kernels.h"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kHeaderWords = sizeof(FrameHeader) / 4;
constexpr std::uint64_t kUnit = 16;  // bytes that a thread moves at once

// A header as the bytes at any address have it.
__device__ FrameHeader load_header(const std::uint8_t* from) {
  union {
    std::uint32_t words[kHeaderWords];
    FrameHeader header;
  } read;
#pragma unroll
  for (unsigned w = 0; w < kHeaderWords; ++w) read.words[w] = load_u32(from + 4 * w);
  return read.header;
}

__device__ std::uint32_t header_crc(const FrameHeader& header) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&header);
  std::uint32_t state = 0xFFFFFFFFu;
#pragma unroll 1
  for (unsigned i = 0; i < sizeof(FrameHeader) - 4; ++i) state = crc_byte(state, bytes[i]);
  return ~state;
}

__device__ void store_header(const FrameHeader& header, std::uint8_t* to) {
  const auto* words = reinterpret_cast<const std::uint32_t*>(&header);
#pragma unroll
  for (unsigned w = 0; w < kHeaderWords; ++w) {
    if (is_aligned(to, 4)) {
      reinterpret_cast<std::uint32_t*>(to)[w] = words[w];
    } else {
      store_u32(to + 4 * w, words[w]);
    }
  }
}

__device__ FrameHeader header_of(const FrameHeaders& headers, const FrameRecord& record,
                                 const FrameExtent& extent) {
  FrameHeader header = record.is_plain != 0 ? headers.plain : headers.regular;
  header.elements = extent.elements;
  header.payload_bytes = record.payload_bytes;
  return header;
}

__global__ void __launch_bounds__(kThreads)
    clear(PayloadPlan plan, Workspace workspace, const FrameSlot* table) {
  const std::uint64_t index = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index == 0) *workspace.state = {0, plan.frames, {0, 0}};
  if (index >= plan.frames) return;
  workspace.records[index] = {};
  if (table != nullptr) workspace.slots[index] = table[index];
}

// The bytes [begin, begin + kUnit) of what ends at `end`.
__device__ void copy_unit(const std::uint8_t* from, std::uint8_t* to, std::uint64_t begin,
                          std::uint64_t end) {
  if (end - begin >= kUnit) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  } else {
    for (std::uint64_t i = 0; i < end - begin; ++i) to[i] = from[i];
  }
}

// A whole frame at a time would leave the device idle where there are few.
constexpr std::uint32_t kPieceBytes = 32768;

__global__ void __launch_bounds__(kThreads)
    copy_outside(PayloadPlan plan, Workspace workspace, std::uint32_t pieces_per_frame) {
  const std::uint64_t jobs = std::uint64_t{plan.frames} * pieces_per_frame;
  for (std::uint64_t job = blockIdx.x; job < jobs; job += gridDim.x) {
    const std::uint64_t frame = job / pieces_per_frame;
    const std::uint64_t bytes = sizeof(FrameHeader) + workspace.records[frame].payload_bytes;
    const std::uint64_t begin = job % pieces_per_frame * kPieceBytes;
    const std::uint64_t end = begin + kPieceBytes < bytes ? begin + kPieceBytes : bytes;
    const std::uint8_t* from = workspace.slots[frame].frame;
    std::uint8_t* to = workspace.slots[frame].outside;
    for (std::uint64_t at = begin + threadIdx.x * kUnit; at < end; at += kThreads * kUnit) {
      copy_unit(from + at, to + at, at, end);
    }
  }
}

// Tells the sections of a frame their places, and gives what they take together.
__device__ std::uint32_t place_sections_of(const SectionSpace& space, std::uint32_t frame) {
  std::uint32_t at = 0;
  for (std::uint32_t s = 0; s < space.count; ++s) {
    Section& section = space.section(frame, s);
    section.coded_bytes = section.bytes;
    if (space.is_staged(s)) {
      section.coded_bytes =
          static_cast<std::uint32_t>(space.huffman.planes[space.plane(frame, s)].coded_bytes);
    }
    section.at = at;
    at += section.coded_bytes;
  }
  return at;
}

__device__ std::uint64_t payload_bytes_of(const LayoutArgs& args, std::uint32_t frame,
                                          const FrameExtent& extent, FrameRecord& record) {
  const std::uint64_t element_bytes = args.plan.element_bytes;
  const std::uint64_t plain_bytes = extent.elements * element_bytes;
  switch (args.sizes) {
    case FrameSizes::Casts:
      record.is_plain = record.raw_elements != 0 ? 1 : 0;
      return record.is_plain != 0 ? plain_bytes : extent.bytes;
    case FrameSizes::Sections: {
      const std::uint32_t bytes = place_sections_of(args.sections, frame);
      if (args.must_shrink && bytes >= plain_bytes) record.is_plain = 1;
      return record.is_plain != 0 ? plain_bytes : bytes;
    }
    case FrameSizes::Blocks:
      record.raw_at = extent.bytes;
      break;
    case FrameSizes::StagedBlocks:
      record.raw_at = extent.codes_at + args.planes[frame].coded_bytes;
      break;
  }
  return record.raw_at + record.raw_elements * element_bytes;
}

// One block.
__global__ void __launch_bounds__(kThreads) lay_out(LayoutArgs args) {
  std::uint64_t end = 0;
  for (std::uint32_t first = 0; first < args.plan.frames; first += kThreads) {
    const std::uint32_t frame = first + threadIdx.x;
    const bool is_there = frame < args.plan.frames;
    FrameExtent extent{};
    FrameRecord record{};
    std::uint64_t bytes = 0;
    if (is_there) {
      extent = args.plan.extent(frame);
      record = args.workspace.records[frame];
      record.payload_bytes = payload_bytes_of(args, frame, extent, record);
      bytes = sizeof(FrameHeader) + record.payload_bytes;
    }
    if (args.plan.slots == nullptr) {
      std::uint64_t total;
      record.offset = end + sum_before<kThreads>(bytes, total);
      end += total;
    }
    if (!is_there) continue;
    args.workspace.records[frame] = record;
    if (args.plan.slots == nullptr && record.offset != frame * args.plan.frame_stride) {
      atomicMin(&args.workspace.state->first_moved, frame);
    }
    if (args.headers.come_with_layout(args.plan)) {
      store_header(header_of(args.headers, record, extent),
                   args.plan.frame_at(args.dst, record.offset, frame));
    }
  }
  if (threadIdx.x == 0 && args.bytes_out != nullptr) *args.bytes_out = end;
}

template <bool kToWorkspace>
__global__ void __launch_bounds__(kThreads) move(std::uint8_t* dst, PayloadPlan plan, Workspace workspace) {
  const std::uint32_t first = workspace.state->first_moved;
  if (first == plan.frames) return;
  const std::uint64_t end = plan.bytes();
  const std::uint64_t threads = std::uint64_t{gridDim.x} * kThreads;
  std::uint64_t at = first * plan.frame_stride + (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) * kUnit;
  for (; at < end; at += threads * kUnit) {
    if constexpr (kToWorkspace) {
      copy_unit(dst + at, workspace.room + at, at, end);
    } else {
      const std::uint64_t frame = plan.frames == 1 ? 0 : at / plan.frame_stride;
      const std::uint64_t last = plan.frames - 1;
      const std::uint64_t of = frame < last ? frame : last;
      std::uint8_t* to = dst + workspace.records[of].offset + (at - of * plan.frame_stride);
      copy_unit(workspace.room + at, to, at, end);
    }
  }
}

// A warp per frame.
__global__ void __launch_bounds__(kThreads)
    write(std::uint8_t* dst, PayloadPlan plan, Workspace workspace, FrameHeaders headers) {
  const std::uint64_t frame = (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (frame >= plan.frames) return;
  const FrameRecord& record = workspace.records[frame];
  FrameHeader header = header_of(headers, record, plan.extent(frame));
  if (headers.with_checksums) {
    header.payload_crc = crc_finished_by_warp(record.crc, static_cast<std::uint32_t>(record.payload_bytes));
    header.header_crc = header_crc(header);
  }
  if (threadIdx.x % kWarp == 0) store_header(header, plan.frame_at(dst, record.offset, frame));
}

__device__ bool same_codec(const FrameHeader& header, const FrameHeader& expected, bool takes_any_rounding) {
  const unsigned differing = header.flags ^ expected.flags;
  return header.codec == expected.codec && header.dtype == expected.dtype && header.block == expected.block &&
         (differing & (takes_any_rounding ? ~1u : ~0u)) == 0;
}

// Whether the header at `from`, where `room` bytes are, fits the frame that should be there; its record if
// so.
__device__ Fault read_header(const FindArgs& args, const FrameExtent& extent, const std::uint8_t* from,
                             std::uint64_t room, FrameRecord& record) {
  if (room < sizeof(FrameHeader)) return Fault::Truncated;
  const FrameHeader header = load_header(from);
  if (header.magic != kFrameMagic) return Fault::Magic;
  if (header.version != kFrameVersion) return Fault::Version;
  if (args.headers.with_checksums && header.header_crc != header_crc(header)) return Fault::HeaderCrc;
  const bool is_plain = same_codec(header, args.headers.plain, false);
  if (!is_plain && !same_codec(header, args.headers.regular, args.takes_any_rounding)) return Fault::Codec;
  if (header.elements != extent.elements) return Fault::Elements;
  const std::uint64_t plain_bytes = std::uint64_t{extent.elements} * args.plan.element_bytes;
  const std::uint64_t least = is_plain ? plain_bytes : extent.least_bytes;
  const std::uint64_t most = is_plain ? plain_bytes : extent.most_bytes;
  if (header.payload_bytes < least || header.payload_bytes > most) return Fault::Size;
  if (header.payload_bytes > room - sizeof(FrameHeader)) return Fault::Truncated;
  record = {0, header.payload_bytes, 0, is_plain ? 1u : 0u, 0, header.payload_crc, extent.bytes};
  return Fault::None;
}

// One block, for a payload. Frames of the usual size are all found at once; behind each frame of another size
// one step starts again.
__global__ void __launch_bounds__(kThreads) find(FindArgs args) {
  __shared__ std::uint32_t first_odd;  // of this step's frames, the first that has another size, or a fault
  __shared__ std::uint64_t next_offset;
  __shared__ bool is_over;
  if (threadIdx.x == 0) {
    is_over = false;
    *args.verdict = 0;
  }
  const std::uint32_t frames = args.plan.frames;
  std::uint64_t offset = 0;
  for (std::uint32_t first = 0; first < frames;) {
    if (threadIdx.x == 0) first_odd = frames;
    __syncthreads();
    const std::uint32_t frame = first + threadIdx.x;
    Fault fault = Fault::None;
    FrameRecord record = {};
    if (frame < frames) {
      const std::uint64_t at = offset + threadIdx.x * args.plan.frame_stride;
      const std::uint64_t room = at < args.payload_bytes ? args.payload_bytes - at : 0;
      fault = read_header(args, args.plan.extent(frame), args.payload + at, room, record);
      record.offset = at;
      const std::uint64_t bytes = sizeof(FrameHeader) + record.payload_bytes;
      if (fault != Fault::None || (bytes != args.plan.frame_stride && frame + 1 < frames)) {
        atomicMin(&first_odd, frame);
      }
    }
    __syncthreads();
    // What was read beyond the odd frame was read at a wrong place.
    const std::uint32_t odd = first_odd;
    const std::uint32_t last = first + kThreads <= frames ? first + kThreads - 1 : frames - 1;
    const std::uint32_t sound = odd < last ? odd : last;
    if (frame <= sound) args.workspace.records[frame] = record;
    if (frame == sound) {
      next_offset = record.offset + sizeof(FrameHeader) + record.payload_bytes;
      if (fault != Fault::None) {
        report(args.verdict, fault, frame);
        is_over = true;
      }
    }
    __syncthreads();
    if (is_over) return;
    offset = next_offset;
    first = sound + 1;
  }
  const bool is_longer = offset != args.payload_bytes && !args.may_be_longer;
  if (threadIdx.x == 0 && is_longer) report(args.verdict, Fault::Trailing, frames - 1);
}

// One block, for a batch: a thread per frame.
__global__ void __launch_bounds__(kThreads) find_each(FindArgs args) {
  if (threadIdx.x == 0) *args.verdict = 0;
  __syncthreads();
  for (std::uint32_t frame = threadIdx.x; frame < args.plan.frames; frame += kThreads) {
    const FrameSlot slot = args.table[frame];
    args.workspace.slots[frame] = slot;
    FrameRecord record = {};
    const Fault fault = read_header(args, slot.extent, slot.frame, slot.room, record);
    args.workspace.records[frame] = record;
    if (fault != Fault::None) report(args.verdict, fault, frame);
  }
}

__global__ void __launch_bounds__(kThreads) check(FindArgs args) {
  const std::uint64_t frame = (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (frame >= args.plan.frames || is_over_for_thread(args.verdict)) return;
  const FrameRecord& record = args.workspace.records[frame];
  const std::uint32_t crc =
      crc_finished_by_warp(record.crc, static_cast<std::uint32_t>(record.payload_bytes));
  if (crc != record.expected_crc && threadIdx.x % kWarp == 0) {
    report(args.verdict, Fault::PayloadCrc, static_cast<std::uint32_t>(frame));
  }
}

Grid warp_per_frame(const PayloadPlan& plan) {
  return one_thread_each(std::uint64_t{plan.frames} * kWarp, kThreads);
}

}  // namespace

core::Status clear_records(const PayloadPlan& plan, const Workspace& workspace, const FrameSlot* table,
                           Stream stream) {
  return launch(clear, one_thread_each(plan.frames, kThreads), stream, plan, workspace, table);
}

core::Status copy_frames_outside(const PayloadPlan& plan, const Workspace& workspace, Stream stream) {
  const FrameExtent& largest = plan.largest();
  const std::uint64_t plain = std::uint64_t{largest.elements} * plan.element_bytes;
  const std::uint64_t most = sizeof(FrameHeader) + std::max<std::uint64_t>(largest.most_bytes, plain);
  const std::uint32_t pieces = parts_of(most, kPieceBytes);
  const std::uint64_t jobs = std::uint64_t{plan.frames} * pieces;
  return launch(copy_outside, Grid{persistent_blocks(jobs, 8), kThreads}, stream, plan, workspace, pieces);
}

core::Status lay_out_frames(const LayoutArgs& args, Stream stream) {
  return launch(lay_out, Grid{1, kThreads}, stream, args);
}

core::Status move_frames(std::uint8_t* dst, const PayloadPlan& plan, const Workspace& workspace,
                         Stream stream) {
  if (plan.frames == 1 || plan.slots != nullptr) return core::Status::ok();
  const std::uint64_t work = (plan.bytes() + kThreads * kUnit - 1) / (kThreads * kUnit);
  const Grid grid{persistent_blocks(work, 8), kThreads};
  GEOCOMM_RETURN_IF_ERROR(launch(move<true>, grid, stream, dst, plan, workspace));
  return launch(move<false>, grid, stream, dst, plan, workspace);
}

core::Status write_headers(std::uint8_t* dst, const PayloadPlan& plan, const Workspace& workspace,
                           const FrameHeaders& headers, Stream stream) {
  return launch(write, warp_per_frame(plan), stream, dst, plan, workspace, headers);
}

core::Status find_frames(const FindArgs& args, Stream stream) {
  return launch(args.table != nullptr ? find_each : find, Grid{1, kThreads}, stream, args);
}

core::Status check_crcs(const FindArgs& args, Stream stream) {
  return launch(check, warp_per_frame(args.plan), stream, args);
}

// Where a batch with error feedback begins: its records, and residuals that are to become the new ones.

namespace {

__device__ __forceinline__ Quad load_floats(const std::uint8_t* base, std::uint64_t at, unsigned count) {
  return load_quad<core::DType::Float32>(base + 4 * at, count, is_aligned(base + 4 * at, 16));
}

// A tile of one frame at a time.
template <core::DType kType>
__global__ void __launch_bounds__(kThreads) enter(EnterFeedback args) {
  __shared__ FrameSlot slot;
  const std::uint64_t first = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (first == 0) {
    *args.workspace.state = {0, args.plan.frames, {0, 0}};
    if (args.cleared != nullptr) *args.cleared = 0;
  }
  const std::uint64_t jobs = std::uint64_t{args.plan.frames} * args.tiles_per_frame;
  for (std::uint64_t job = blockIdx.x; job < jobs; job += gridDim.x) {
    const std::uint64_t frame = job / args.tiles_per_frame;
    const std::uint64_t begin = job % args.tiles_per_frame * kFeedbackTile;
    __syncthreads();
    if (threadIdx.x == 0) {
      slot = args.table[frame];
      if (begin == 0) {
        args.workspace.records[frame] = {};
        args.workspace.slots[frame] = slot;
      }
    }
    __syncthreads();
    const std::uint64_t elements = slot.extent.elements;
    const std::uint64_t end = begin + kFeedbackTile < elements ? begin + kFeedbackTile : elements;
    double squares = 0;
    for (std::uint64_t at = begin + 4 * threadIdx.x; at < end; at += 4 * kThreads) {
      const unsigned here = end - at < 4 ? static_cast<unsigned>(end - at) : 4u;
      std::uint8_t* const from = slot.elements + at * kElementBytes<kType>;
      Quad values = load_quad<kType>(from, here, is_aligned(from, 4 * kElementBytes<kType>));
      Quad lost = load_floats(slot.previous, at, here);
      if (slot.scale != nullptr) {
        const Quad scale = load_floats(slot.scale, at, here);
#pragma unroll
        for (unsigned c = 0; c < 4; ++c) lost.v[c] = divide_as_host(lost.v[c], scale.v[c]);
        if (args.scales_elements) {
#pragma unroll
          for (unsigned c = 0; c < 4; ++c) values.v[c] = divide_as_host(values.v[c], scale.v[c]);
          values = rounded<kType>(values);
          store_as_rounded<kType>(from, values, here);
        }
      }
      std::uint8_t* const to = slot.residual + 4 * at;
      store_quad<core::DType::Float32>(to, lost, here, is_aligned(to, 16));
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) values.v[c] = add_residual(values.v[c], args.decay, lost.v[c]);
      squares = with_squares(squares, values, here);
    }
    squares = combine_all<kThreads>(squares, [](double a, double b) { return __dadd_rn(a, b); });
    if (threadIdx.x == 0) args.squares[job] = squares;
  }
}

}  // namespace

core::Status enter_feedback(core::DType dtype, const EnterFeedback& args, Stream stream) {
  const Grid grid{persistent_blocks(std::uint64_t{args.plan.frames} * args.tiles_per_frame, 8), kThreads};
  return with_compressible(dtype,
                           [&]<core::DType kType>() { return launch(enter<kType>, grid, stream, args); });
}

}  // namespace geocomm::codec::cuda
