// Headers of frames: written behind the encoder, and found and checked in received bytes.
#include "codec/cuda/crc32c_device.cuh"
#include "codec/cuda/huffman_device.cuh"
#include "codec/cuda/kernels.h"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kHeaderWords = sizeof(FrameHeader) / 4;

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

// A warp per frame.
__global__ void __launch_bounds__(kThreads) write(SealArgs args) {
  const std::uint64_t frame = (std::uint64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (frame >= args.plan.frames) return;
  const FrameRecord& record = args.workspace.records[frame];
  FrameHeader header = record.is_plain != 0 ? args.plain : args.regular;
  header.elements = args.plan.extent(frame).elements;
  header.payload_bytes = record.payload_bytes;
  if (args.with_checksums) {
    header.payload_crc = crc_finished_by_warp(record.crc, static_cast<std::uint32_t>(record.payload_bytes));
    header.header_crc = header_crc(header);
  }
  const auto* words = reinterpret_cast<const std::uint32_t*>(&header);
  const unsigned lane = threadIdx.x % kWarp;
  auto* to = reinterpret_cast<std::uint32_t*>(args.dst + record.offset);
#pragma unroll
  for (unsigned w = 0; w < kHeaderWords; ++w) {
    if (lane != w) continue;
    if (is_aligned(to, 4)) {
      to[w] = words[w];
    } else {
      store_u32(reinterpret_cast<std::uint8_t*>(to + w), words[w]);
    }
  }
}

__device__ bool same_codec(const FrameHeader& header, const FrameHeader& expected, bool takes_any_rounding) {
  const unsigned differing = header.flags ^ expected.flags;
  return header.codec == expected.codec && header.dtype == expected.dtype && header.block == expected.block &&
         (differing & (takes_any_rounding ? ~1u : ~0u)) == 0;
}

// Whether a header fits the frame that should be there; its record if so.
__device__ Fault read_header(const FindArgs& args, std::uint32_t frame, std::uint64_t offset,
                             FrameRecord& record) {
  if (args.payload_bytes < offset || args.payload_bytes - offset < sizeof(FrameHeader))
    return Fault::Truncated;
  const FrameHeader header = load_header(args.payload + offset);
  if (header.magic != kFrameMagic) return Fault::Magic;
  if (header.version != kFrameVersion) return Fault::Version;
  if (args.has_checksums && header.header_crc != header_crc(header)) return Fault::HeaderCrc;
  const bool is_plain = same_codec(header, args.plain, false);
  if (!is_plain && !same_codec(header, args.regular, args.takes_any_rounding)) return Fault::Codec;
  const FrameExtent extent = args.plan.extent(frame);
  if (header.elements != extent.elements) return Fault::Elements;
  const std::uint64_t plain_bytes = std::uint64_t{extent.elements} * args.plan.element_bytes;
  const std::uint64_t least = is_plain ? plain_bytes : extent.least_bytes;
  const std::uint64_t most = is_plain ? plain_bytes : extent.most_bytes;
  if (header.payload_bytes < least || header.payload_bytes > most) return Fault::Size;
  if (header.payload_bytes > args.payload_bytes - offset - sizeof(FrameHeader)) return Fault::Truncated;
  record = {offset, header.payload_bytes, 0, is_plain ? 1u : 0u, 0, header.payload_crc, extent.bytes};
  return Fault::None;
}

// One block. Frames of the usual size are all found at once; behind each frame of another size one step
// starts again.
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
      fault = read_header(args, frame, offset + threadIdx.x * args.plan.frame_stride, record);
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

core::Status write_headers(const SealArgs& args, Stream stream) {
  return launch(write, warp_per_frame(args.plan), stream, args);
}

core::Status find_frames(const FindArgs& args, Stream stream) {
  return launch(find, Grid{1, kThreads}, stream, args);
}

core::Status check_crcs(const FindArgs& args, Stream stream) {
  return launch(check, warp_per_frame(args.plan), stream, args);
}

}  // namespace geocomm::codec::cuda
