// The places of chosen elements as the frame has them. A block of threads per frame finds where each chunk's
// part lies; then a warp per chunk writes it.
#include "codec/cuda/block_scan.cuh"
#include "codec/cuda/huffman_device.cuh"
#include "codec/cuda/top_k_stages.h"

namespace geocomm::codec::cuda {
namespace {

constexpr unsigned kThreads = kTopKThreads;
constexpr unsigned kBitmapWords = kTopKChunk / 32;

// Of this chunk's gaps, if they are counted from `next_place` on.
__device__ std::uint32_t gap_bytes(const ChunkRecord& record, std::uint32_t next_place) {
  return record.count == 0 ? 0 : record.inner_bytes + (record.first_place - next_place) / kLongGap + 1;
}

__global__ void __launch_bounds__(kThreads) place_chunks(TopKEncode args) {
  const std::uint32_t elements = args.plan.extent(blockIdx.x).elements;
  const std::uint32_t chunks = (elements + kTopKChunk - 1) / kTopKChunk;
  ChunkRecord* records = args.space.chunks + std::uint64_t{blockIdx.x} * args.space.chunks_per_frame;
  std::uint32_t next_place = 0;
  std::uint64_t sums = 0;  // chosen elements, in the upper half; bytes of gaps
  for (std::uint32_t first = 0; first < chunks; first += kThreads) {
    const std::uint32_t chunk = first + threadIdx.x;
    ChunkRecord record{};
    if (chunk < chunks) record = records[chunk];
    std::uint32_t last_next;
    const std::uint32_t own_next =
        combine_before<kThreads>(record.count == 0 ? 0u : record.last_place + 1, last_next,
                                 [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; });
    record.next_place = own_next > next_place ? own_next : next_place;
    std::uint64_t total;
    const std::uint64_t own = std::uint64_t{record.count} << 32 | gap_bytes(record, record.next_place);
    const std::uint64_t before = sums + sum_before<kThreads>(own, total);
    record.gaps_at = static_cast<std::uint32_t>(before);
    if (chunk < chunks) records[chunk] = record;
    next_place = last_next > next_place ? last_next : next_place;
    sums += total;
  }
  if (threadIdx.x != 0) return;
  const auto count = static_cast<std::uint32_t>(sums >> 32);
  const bool is_bitmap = 12 * std::uint64_t{count} > elements;
  TopKHead head{};
  head.count = count;
  head.index_bytes = is_bitmap ? (elements + 7) / 8 : static_cast<std::uint32_t>(sums);
  head.index_mode = static_cast<std::uint8_t>(is_bitmap ? IndexMode::Bitmap : IndexMode::Gaps);
  head.values = static_cast<std::uint8_t>(args.form);
  args.space.frames[blockIdx.x] = {head, 0};
}

// By a warp. The first gap of a chunk may pass over any number of chunks of which nothing was chosen.
__device__ void write_gaps(const ChunkRecord& record, const std::uint32_t* places, std::uint8_t* gaps) {
  const unsigned lane = threadIdx.x % kWarp;
  std::uint32_t longs = (record.first_place - record.next_place) / kLongGap;
  for (std::uint32_t i = lane; i < longs; i += kWarp) gaps[i] = kLongGap;
  std::uint32_t at = longs;
  for (std::uint32_t first = 0; first < record.count; first += kWarp) {
    const std::uint32_t i = first + lane;
    std::uint32_t rest = 0;
    longs = 0;
    if (i < record.count) {
      const std::uint32_t gap =
          i == 0 ? record.first_place - record.next_place : places[i] - places[i - 1] - 1;
      longs = i == 0 ? 0 : gap / kLongGap;
      rest = gap % kLongGap;
    }
    const std::uint32_t own = i < record.count ? longs + 1 : 0;
    const std::uint32_t before = warp_sum_before(own);
    for (std::uint32_t j = 0; j < longs; ++j) gaps[at + before + j] = kLongGap;
    if (own != 0) gaps[at + before + longs] = static_cast<std::uint8_t>(rest);
    at += __shfl_sync(kFullMask, before + own, kWarp - 1);
  }
}

// By a warp. Behind the last element's byte it may write zeros up to a whole word, into the index's room.
__device__ void write_bitmap(const ChunkRecord& record, const std::uint32_t* places, std::uint32_t length,
                             std::uint32_t* shared, std::uint32_t* bitmap) {
  const unsigned lane = threadIdx.x % kWarp;
  for (unsigned word = lane; word < kBitmapWords; word += kWarp) shared[word] = 0;
  __syncwarp();
  for (std::uint32_t i = lane; i < record.count; i += kWarp) {
    const std::uint32_t place = places[i] % kTopKChunk;
    atomicOr(&shared[place / 32], 1u << place % 32);
  }
  __syncwarp();
  for (unsigned word = lane; word < (length + 31) / 32; word += kWarp) bitmap[word] = shared[word];
}

__global__ void __launch_bounds__(kThreads) write_chunks(TopKEncode args) {
  __shared__ std::uint32_t bitmaps[kTopKWarps][kBitmapWords];
  const std::uint64_t element = (std::uint64_t{blockIdx.x} * kTopKWarps + threadIdx.x / kWarp) * kTopKChunk;
  if (element >= args.plan.elements) return;
  const std::uint32_t frame = args.plan.frame_of_element(element);
  const auto first = static_cast<std::uint32_t>(element - frame * args.plan.frame_elements);
  const std::uint32_t elements = args.plan.extent(frame).elements;
  if (first >= elements) return;
  const std::uint32_t index = first / kTopKChunk;
  const ChunkRecord record = args.space.chunks[std::uint64_t{frame} * args.space.chunks_per_frame + index];
  const std::uint32_t* places =
      args.space.places + args.space.first_value(frame) + std::uint64_t{index} * args.space.chunk_limit;
  std::uint8_t* to = args.space.sections.content(frame, TopKSection::Index);
  if (args.space.frames[frame].head.index_mode == static_cast<std::uint8_t>(IndexMode::Bitmap)) {
    const std::uint32_t left = elements - first;
    write_bitmap(record, places, left < kTopKChunk ? left : kTopKChunk, bitmaps[threadIdx.x / kWarp],
                 reinterpret_cast<std::uint32_t*>(to + index * (kTopKChunk / 8)));
  } else if (record.count != 0) {
    write_gaps(record, places, to + record.gaps_at);
  }
}

}  // namespace

core::Status write_places(const TopKEncode& args, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(launch(place_chunks, Grid{args.plan.frames, kThreads}, stream, args));
  const std::uint64_t chunks = (args.plan.elements + kTopKChunk - 1) / kTopKChunk;
  return launch(write_chunks, one_thread_each(chunks * kWarp, kThreads), stream, args);
}

}  // namespace geocomm::codec::cuda
