// Received frames of Loco: checked, then put to their places.
#include "codec/block_layout.h"
#include "codec/cuda/block_scan.cuh"
#include "codec/cuda/element_access.cuh"
#include "codec/cuda/loco_records.cuh"
#include "codec/cuda/loco_stages.h"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {
namespace {

__device__ __forceinline__ std::uint32_t frame_of_thread() {
  return blockIdx.x * kLocoThreads + threadIdx.x;
}

// Behind a verdict, or in a frame of None, nothing has any bytes.
__global__ void __launch_bounds__(kLocoThreads) expect(LocoDecode args) {
  const std::uint32_t frame = frame_of_thread();
  if (frame >= args.frames.plan.frames) return;
  for (std::uint32_t s = 0; s < LocoSection::Count; ++s) args.sections.section(frame, s) = {};
  args.ks[frame] = 0;
  if (*args.frames.verdict != 0 || args.frames.workspace.records[frame].is_plain != 0) return;
  args.sections.section(frame, LocoSection::Head).bytes = sizeof(LocoHead);
}

__global__ void __launch_bounds__(kLocoThreads) read(LocoDecode args) {
  const std::uint32_t frame = frame_of_thread();
  if (frame >= args.frames.plan.frames) return;
  const std::uint8_t* from = args.sections.section(frame, LocoSection::Head).content;
  if (from == nullptr) return;
  const std::uint32_t k = load_u16(from);
  if (k < 1 || k > kLocoMaxK || load_u16(from + 2) != 0) {
    report(args.frames.verdict, Fault::LocoHead, frame);
    return;
  }
  args.ks[frame] = k;
  args.sections.section(frame, LocoSection::Records).bytes =
      records_bytes_of(k, args.frames.plan.extent(frame).elements);
}

// A block per frame.
__global__ void __launch_bounds__(kLocoThreads) check_levels(LocoDecode args) {
  __shared__ bool is_over;
  if (threadIdx.x == 0) is_over = *args.frames.verdict != 0;
  __syncthreads();
  if (is_over) return;
  const std::uint32_t frame = blockIdx.x;
  const std::uint32_t k = args.ks[frame];
  if (k == 0) return;
  const std::uint32_t elements = args.frames.plan.extent(frame).elements;
  const std::uint32_t chunks = (elements + kTopKChunk - 1) / kTopKChunk;
  const std::uint8_t* records = args.sections.section(frame, LocoSection::Records).content;
  std::uint32_t* raw_before = args.raw_before + std::uint64_t{frame} * args.chunks_per_frame;
  std::uint32_t raw_values = 0;
  for (std::uint32_t first = 0; first < chunks; first += kLocoThreads) {
    const std::uint32_t chunk = first + threadIdx.x;
    std::uint32_t own = 0;
    if (chunk < chunks) {
      const std::uint8_t* levels = records + std::uint64_t{chunk} * record_bytes_of(k);
      const std::uint32_t low = load_u16(levels);
      if (low > kRawScale || load_u16(levels + 2) >= kRawScale) {
        report(args.frames.verdict, Fault::Scale, frame);
      }
      const std::uint32_t left = elements - chunk * kTopKChunk;
      if (low == kRawScale) own = loco_share(k, left < kTopKChunk ? left : kTopKChunk);
    }
    std::uint32_t all;
    const std::uint32_t before = sum_before<kLocoThreads>(own, all);
    if (chunk < chunks) raw_before[chunk] = raw_values + before;
    raw_values += all;
  }
  if (threadIdx.x == 0) {
    args.sections.section(frame, LocoSection::Raw).bytes =
        raw_values * static_cast<std::uint32_t>(sizeof(float));
  }
}

// A chunk's record, and how many values it has.
struct Received {
  LocoChunk chunk;
  std::uint32_t count;
  const std::uint8_t* record;

  __device__ __forceinline__ std::uint32_t place(std::uint32_t index) const {
    const std::uint32_t pair = load_u16(record + sizeof(LocoLevels) + 3 * index / 2);
    return (index % 2 == 0 ? pair : pair >> 4) & 0xFFF;
  }
};

__device__ bool find_record(const LocoDecode& args, Received& own) {
  if (!find_chunk(args.frames.plan, own.chunk)) return false;
  const std::uint32_t k = args.ks[own.chunk.frame];
  if (k == 0) return false;
  own.count = loco_share(k, own.chunk.length);
  own.record = args.sections.section(own.chunk.frame, LocoSection::Records).content +
               std::uint64_t{own.chunk.index} * record_bytes_of(k);
  return true;
}

__global__ void __launch_bounds__(kLocoThreads) check_places(LocoDecode args) {
  if (*args.frames.verdict != 0) return;
  Received own;
  if (!find_record(args, own)) return;
  bool is_sound = true;
  for (std::uint32_t i = threadIdx.x % kWarp; i < own.count; i += kWarp) {
    const std::uint32_t place = own.place(i);
    is_sound = is_sound && place < own.chunk.length && (i == 0 || own.place(i - 1) < place);
  }
  if (!is_sound) report(args.frames.verdict, Fault::Places, own.chunk.frame);
}

template <Sink kSink>
__global__ void __launch_bounds__(kLocoThreads) put(LocoDecode args) {
  if (*args.frames.verdict != 0) return;
  Received own;
  if (!find_record(args, own)) return;
  const std::uint32_t low = load_u16(own.record);
  const std::uint32_t high = load_u16(own.record + 2);
  const std::uint8_t* codes = own.record + sizeof(LocoLevels) + place_bytes_of(own.count);
  const std::uint8_t* raw =
      args.sections.section(own.chunk.frame, LocoSection::Raw).content +
      std::uint64_t{
          args.raw_before[std::uint64_t{own.chunk.frame} * args.chunks_per_frame + own.chunk.index]} *
          sizeof(float);
  for (std::uint32_t i = threadIdx.x % kWarp; i < own.count; i += kWarp) {
    std::uint32_t bits = 0;
    if (low == kRawScale) {
      bits = load_u32(raw + std::uint64_t{i} * sizeof(float));
    } else {
      const std::uint32_t code = codes[i / 4] >> 2 * (i % 4);
      bits = ((code & 1) != 0 ? high : low) << 16 | (code >> 1 & 1) << 31;
    }
    put_value<kSink>(args.frames.dst, own.chunk.first + own.place(i), __uint_as_float(bits));
  }
}

}  // namespace

core::Status expect_loco_heads(const LocoDecode& args, Stream stream) {
  return launch(expect, grid_of_frames(args.frames.plan), stream, args);
}

core::Status read_loco_heads(const LocoDecode& args, Stream stream) {
  return launch(read, grid_of_frames(args.frames.plan), stream, args);
}

core::Status check_loco_levels(const LocoDecode& args, Stream stream) {
  return launch(check_levels, Grid{args.frames.plan.frames, kLocoThreads}, stream, args);
}

core::Status check_loco_places(const LocoDecode& args, Stream stream) {
  return launch(check_places, grid_of_chunks(args.frames.plan), stream, args);
}

core::Status put_loco_values(const LocoDecode& args, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(fill_unchosen(args.frames, stream));
  return with_sink(args.frames.sink, [&]<Sink kSink>() {
    return launch(put<kSink>, grid_of_chunks(args.frames.plan), stream, args);
  });
}

}  // namespace geocomm::codec::cuda
