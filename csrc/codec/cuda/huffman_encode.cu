// The Huffman encoder: counts and modes of all blocks, then their substreams.
#include <algorithm>

#include "codec/cuda/device.h"
#include "codec/cuda/huffman.cuh"
#include "codec/cuda/huffman_planes.h"

namespace geocomm::codec::cuda {

// Counts of each block's bytes, the code for them, and the choice of the mode. A plane's blocks choose one
// after the other, since each may take the table of one before it; all the work is done before that.

namespace {

using huffman::BlockMode;
using huffman::kMaxCodeBits;
using huffman::kSymbols;

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / kWarp;
constexpr std::uint32_t kAbsent = 0xFFFFFFFFu;
static_assert(kThreads == kSymbols);

// A thread per byte value.
struct Tables {
  std::uint32_t of_warps[kWarps][kSymbols];
  std::uint32_t counts[kSymbols];
  std::uint32_t keys[kSymbols];         // symbol | count << 8
  std::uint32_t weights[2 * kSymbols];  // the leaves in order, then the inner nodes
  std::uint16_t parents[2 * kSymbols];
  std::uint32_t of_length[kMaxCodeBits + 1];
};

__device__ std::uint64_t sum_of_block(std::uint64_t value) {
  return combine_all<kThreads>(value, [](std::uint64_t a, std::uint64_t b) { return a + b; });
}

__device__ void count_bytes(const std::uint8_t* from, std::uint32_t length, Tables& tables) {
  std::uint32_t* own = tables.of_warps[threadIdx.x / kWarp];
  for (unsigned i = threadIdx.x % kWarp; i < kSymbols; i += kWarp) own[i] = 0;
  __syncwarp();
  std::uint32_t head = static_cast<std::uint32_t>(-reinterpret_cast<std::uintptr_t>(from) & 15);
  head = head < length ? head : length;
  const std::uint32_t units = (length - head) / 16;
  for (std::uint32_t unit = threadIdx.x; unit < units; unit += kThreads) {
    const uint4 loaded = *reinterpret_cast<const uint4*>(from + head + unit * 16);
    const std::uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
    for (int i = 0; i < 16; ++i) atomicAdd(&own[words[i / 4] >> 8 * (i % 4) & 0xFF], 1u);
  }
  for (std::uint32_t at = threadIdx.x; at < head; at += kThreads) atomicAdd(&own[from[at]], 1u);
  for (std::uint32_t at = head + units * 16 + threadIdx.x; at < length; at += kThreads) {
    atomicAdd(&own[from[at]], 1u);
  }
  __syncthreads();
  std::uint32_t count = 0;
  for (unsigned warp = 0; warp < kWarps; ++warp) count += tables.of_warps[warp][threadIdx.x];
  tables.counts[threadIdx.x] = count;
}

// By one thread: the parents of all nodes but the root, which is the last.
__device__ void join_nodes(Tables& tables, unsigned leaves) {
  unsigned leaf = 0;
  unsigned inner = leaves;
  for (unsigned end = leaves; end < 2 * leaves - 1; ++end) {
    std::uint32_t weight = 0;
    for (int child = 0; child < 2; ++child) {
      const bool is_leaf = leaf < leaves && (inner == end || tables.weights[leaf] <= tables.weights[inner]);
      const unsigned node = is_leaf ? leaf++ : inner++;
      weight += tables.weights[node];
      tables.parents[node] = static_cast<std::uint16_t>(end);
    }
    tables.weights[end] = weight;
  }
}

// By one thread, as in code_table.cc.
__device__ void fit_to_limit(std::uint32_t* of_length) {
  std::uint32_t sum = 0;
  for (unsigned l = 1; l <= kMaxCodeBits; ++l) sum += of_length[l] * (kWholeCode >> l);
  while (sum > kWholeCode) {
    unsigned l = kMaxCodeBits - 1;
    while (of_length[l] == 0) --l;
    --of_length[l];
    ++of_length[l + 1];
    sum -= kWholeCode >> (l + 1);
  }
  while (sum < kWholeCode) {
    unsigned l = kMaxCodeBits;
    while ((kWholeCode >> (l - 1)) - 1 <= kWholeCode - sum) --l;
    --of_length[kMaxCodeBits];
    ++of_length[l];
    sum += (kWholeCode >> l) - 1;
  }
}

// This thread's byte's length, 0 where it does not occur. Two or more occur.
__device__ unsigned code_length(Tables& tables, unsigned leaves) {
  const std::uint32_t count = tables.counts[threadIdx.x];
  const std::uint32_t key = count == 0 ? kAbsent : threadIdx.x | count << 8;
  tables.keys[threadIdx.x] = key;
  if (threadIdx.x <= kMaxCodeBits) tables.of_length[threadIdx.x] = 0;
  __syncthreads();
  unsigned rank = 0;
  for (unsigned i = 0; i < kSymbols; ++i) rank += tables.keys[i] < key ? 1 : 0;
  if (count != 0) tables.weights[rank] = count;
  __syncthreads();
  if (threadIdx.x == 0) join_nodes(tables, leaves);
  __syncthreads();
  if (count != 0) {
    unsigned depth = 0;
    for (unsigned node = rank; node != 2 * leaves - 2 && depth < kMaxCodeBits; node = tables.parents[node]) {
      ++depth;
    }
    atomicAdd(&tables.of_length[depth], 1u);
  }
  __syncthreads();
  if (threadIdx.x == 0) fit_to_limit(tables.of_length);
  __syncthreads();
  if (count == 0) return 0;
  unsigned length = kMaxCodeBits;
  for (unsigned longer = tables.of_length[length]; rank >= longer; longer += tables.of_length[length]) {
    --length;
  }
  return length;
}

// A block of threads per block of a plane. `head` becomes a guess: own table, if not single or hopeless.
__global__ void __launch_bounds__(kThreads) measure(HuffmanSpace space) {
  __shared__ Tables tables;
  const HuffmanPlane& plane = space.planes[blockIdx.x / space.blocks_per_plane];
  const unsigned index = blockIdx.x % space.blocks_per_plane;
  const std::uint32_t length = huffman_block_length(plane.bytes, index);
  if (length == 0) return;
  count_bytes(plane.from + std::uint64_t{index} * huffman::kBlockBytes, length, tables);
  HuffmanBlock& block = space.blocks[blockIdx.x];
  HuffmanCode& code = space.codes[blockIdx.x];
  const std::uint64_t count = tables.counts[threadIdx.x];
  code.counts[threadIdx.x] = static_cast<std::uint32_t>(count);
  if (count == length) block.head = huffman::make_head(BlockMode::Single, threadIdx.x);
  // Both in one sum: the squares are less than 2^35.
  const std::uint64_t sum = sum_of_block(count * count | std::uint64_t{count != 0} << 48);
  const auto leaves = static_cast<unsigned>(sum >> 48);
  const std::uint64_t squares = sum & ((std::uint64_t{1} << 48) - 1);
  if (leaves == 1) return;
  if (195 * squares <= std::uint64_t{length} * length) {
    if (threadIdx.x == 0) block.head = huffman::make_head(BlockMode::Raw, length);
    return;
  }
  const unsigned own = code_length(tables, leaves);
  code.lengths[threadIdx.x] = static_cast<std::uint8_t>(own);
  const std::uint64_t bits = sum_of_block(count * own);
  if (threadIdx.x != 0) return;
  block.head =
      huffman::make_head(BlockMode::OwnTable, static_cast<std::uint32_t>(huffman::table_bytes(leaves)));
  block.coded_bits = static_cast<std::uint32_t>(bits);
}

// A warp per plane; each lane has eight bytes' lengths in the latest table. Heads of coded blocks then have
// their mode, and not yet their size.
__global__ void __launch_bounds__(kWarp) choose(HuffmanSpace space) {
  constexpr unsigned kEach = kSymbols / kWarp;
  const HuffmanPlane& plane = space.planes[blockIdx.x];
  const unsigned first = threadIdx.x * kEach;
  std::uint32_t latest[kEach] = {};
  std::uint32_t latest_block = 0;
  bool has_table = false;
  for (std::uint32_t index = 0;; ++index) {
    const std::uint32_t length = huffman_block_length(plane.bytes, index);
    if (length == 0) break;
    const std::uint64_t slot = space.slot(blockIdx.x, index);
    HuffmanBlock& block = space.blocks[slot];
    const std::uint32_t head = block.head;
    if (huffman::head_mode(head) != BlockMode::OwnTable) continue;
    const HuffmanCode& code = space.codes[slot];
    const std::uint32_t own_bits = block.coded_bits;
    std::uint32_t table = huffman::head_rest(head);
    std::uint32_t bits = 0;
    bool lacks = !has_table;
#pragma unroll
    for (unsigned i = 0; i < kEach; ++i) {
      const std::uint32_t count = code.counts[first + i];
      bits += count * latest[i];
      lacks = lacks || (count != 0 && latest[i] == 0);
    }
    bits = __reduce_add_sync(kFullMask, bits);
    const bool is_shared = __ballot_sync(kFullMask, lacks) == 0 && bits <= own_bits + 8 * table;
    if (is_shared) {
      table = 0;
    } else {
      bits = own_bits;
    }
    const std::size_t estimate = huffman::body_estimate(length, table, bits);
    const bool is_raw = !huffman::is_worth_coding(length, estimate);
    if (!is_raw && !is_shared) {
      has_table = true;
      latest_block = index;
#pragma unroll
      for (unsigned i = 0; i < kEach; ++i) latest[i] = code.lengths[first + i];
    }
    if (threadIdx.x != 0) continue;
    block.head = is_raw ? huffman::make_head(BlockMode::Raw, length)
                        : huffman::make_head(is_shared ? BlockMode::LatestTable : BlockMode::OwnTable, table);
    block.table_block = latest_block;
  }
}

// Counts, codes and modes of all blocks. Of coded ones the head says the mode and the bytes of the table.
core::Status choose_huffman_modes(const HuffmanSpace& space, Stream stream) {
  const Grid grid{std::uint64_t{space.plane_count} * space.blocks_per_plane, kThreads};
  GEOCOMM_RETURN_IF_ERROR(launch(measure, grid, stream, space));
  return launch(choose, Grid{space.plane_count, kWarp}, stream, space);
}

// Substreams of coded blocks, a warp each, from the last symbol to the first: a lane per lane of the format.
// They are written at the end of their room in the workspace, and brought to their place when all sizes are
// known.

using huffman::BlockMode;
using huffman::kLanes;
using huffman::kMaxCodeBits;
using huffman::kMaxSubstreams;
using huffman::kSymbols;
using huffman::kWordBits;

constexpr unsigned kSubstreamThreads = kMaxSubstreams * kWarp;
constexpr unsigned kGroup = 4;  // rows whose symbols a warp loads at once
constexpr unsigned kCarryWords = kLanes * 15 / 32 + 1;
constexpr unsigned kWriteThreads = 256;
static_assert(kLanes == kWarp && kWriteThreads == kSymbols);

__device__ __forceinline__ bool is_coded(std::uint32_t head) {
  return huffman::head_mode(head) == BlockMode::OwnTable ||
         huffman::head_mode(head) == BlockMode::LatestTable;
}

struct LaneWriter {
  std::uint32_t bits;
  std::uint32_t held;
  std::uint16_t* front;  // of the warp's words

  // `count` lanes have a symbol in this row.
  __device__ __forceinline__ void add_row(std::uint32_t entry, unsigned count) {
    const bool is_there = threadIdx.x % kWarp < count;
    const std::uint32_t length = is_there ? entry >> kMaxCodeBits : 0;
    const bool gives = held + length > 31;
    const unsigned mask = __ballot_sync(kFullMask, gives);
    front -= __popc(mask);
    if (gives) {
      front[lanes_before(mask)] = static_cast<std::uint16_t>(bits);
      bits >>= kWordBits;
      held -= kWordBits;
    }
    if (is_there) bits |= (entry & ((1u << kMaxCodeBits) - 1)) << held;
    held += length;
  }

  // What the substream begins with; `count` lanes have symbols.
  __device__ __forceinline__ void add_carry(unsigned count, std::uint32_t* packed) {
    const unsigned lane = threadIdx.x % kWarp;
    const bool is_there = lane < count;
    front -= count;
    if (is_there) front[lane] = static_cast<std::uint16_t>(bits);
    const std::uint32_t carried = is_there ? held - kWordBits : 0;
    const std::uint32_t at = warp_sum_before(carried);
    const std::uint32_t total = __shfl_sync(kFullMask, at + carried, kWarp - 1);
    if (lane < kCarryWords) packed[lane] = 0;
    __syncwarp();
    if (carried != 0) {
      const std::uint64_t shifted = std::uint64_t{bits >> kWordBits} << at % 32;
      atomicOr(&packed[at / 32], static_cast<std::uint32_t>(shifted));
      const auto high = static_cast<std::uint32_t>(shifted >> 32);
      if (high != 0) atomicOr(&packed[at / 32 + 1], high);
    }
    __syncwarp();
    const unsigned words = (total + 15) / 16;
    front -= words;
    if (lane < words) front[lane] = static_cast<std::uint16_t>(packed[lane / 2] >> lane % 2 * 16);
    std::uint32_t nibbles = carried << lane % 4 * 4;
    nibbles |= __shfl_xor_sync(kFullMask, nibbles, 1);
    nibbles |= __shfl_xor_sync(kFullMask, nibbles, 2);
    front -= huffman::kCarryCountBytes / 2;
    if (lane % 4 == 0) front[lane / 4] = static_cast<std::uint16_t>(nibbles);
  }
};

// Symbols of the rows [4 group, 4 group + 4), of `whole` bytes of rows: four to a lane, in order.
__device__ __forceinline__ std::uint32_t load_group(const std::uint8_t* from, std::uint32_t group,
                                                    std::uint32_t whole) {
  const std::uint32_t at = group * kGroup * kLanes + threadIdx.x % kWarp * 4;
  return at < whole ? load_any_u32(from + at) : 0;
}

__device__ std::uint32_t encode_substream(const std::uint32_t* entries, const std::uint8_t* from,
                                          std::uint32_t symbols, std::uint16_t* end, std::uint32_t* packed) {
  const unsigned lane = threadIdx.x % kWarp;
  const std::uint32_t lanes = symbols < kLanes ? symbols : kLanes;
  const std::uint32_t rest = symbols % kLanes;
  const std::uint32_t whole = symbols - rest;
  LaneWriter writer{0, 0, end};
  // A lane's last symbol is in the last row, or in the one before.
  const std::uint32_t partial = lane < rest ? entries[from[whole + lane]] : 0;
  if (lane < rest) {
    writer.held = kWordBits - (partial >> kMaxCodeBits);
  } else if (lane < lanes) {
    writer.held = kWordBits - (entries[from[whole - kLanes + lane]] >> kMaxCodeBits);
  }
  if (rest != 0) writer.add_row(partial, rest);

  const std::uint32_t rows = whole / kLanes;
  std::uint32_t group = (rows + kGroup - 1) / kGroup;
  std::uint32_t next = group == 0 ? 0 : load_group(from, group - 1, whole);
  while (group-- > 0) {
    const std::uint32_t symbols_of_group = next;
    if (group != 0) next = load_group(from, group - 1, whole);
#pragma unroll
    for (unsigned row = kGroup; row-- > 0;) {
      if (group * kGroup + row >= rows) continue;  // only of the last group
      const std::uint32_t four =
          __shfl_sync(kFullMask, symbols_of_group, static_cast<int>(row * (kLanes / 4) + lane / 4));
      writer.add_row(entries[four >> lane % 4 * 8 & 0xFF], kLanes);
    }
  }
  writer.add_carry(lanes, packed);
  return static_cast<std::uint32_t>(end - writer.front) * 2;
}

__global__ void __launch_bounds__(kSubstreamThreads) encode(HuffmanSpace space) {
  __shared__ std::uint32_t entries[kSymbols];
  __shared__ std::uint32_t carries[kMaxSubstreams][kCarryWords];
  __shared__ std::uint32_t sizes[kMaxSubstreams];
  const std::uint32_t plane_index = blockIdx.x / space.blocks_per_plane;
  const HuffmanPlane& plane = space.planes[plane_index];
  const unsigned index = blockIdx.x % space.blocks_per_plane;
  const std::uint32_t length = huffman_block_length(plane.bytes, index);
  if (length == 0) return;
  HuffmanBlock& block = space.blocks[blockIdx.x];
  const std::uint32_t head = block.head;
  if (!is_coded(head)) return;
  const unsigned warp = threadIdx.x / kWarp;
  if (warp == 0) make_codes(space.codes[space.slot(plane_index, block.table_block)].lengths, entries);
  __syncthreads();
  if (warp < huffman::substream_count(length)) {
    const std::uint64_t room = std::uint64_t{blockIdx.x} * kMaxSubstreams + warp;
    auto* end = reinterpret_cast<std::uint16_t*>(space.substreams + (room + 1) * space.room_per_substream);
    const std::uint8_t* from =
        plane.from + std::uint64_t{index} * huffman::kBlockBytes + warp * huffman::substream_step(length);
    const auto symbols = static_cast<std::uint32_t>(huffman::substream_length(length, warp));
    const std::uint32_t bytes = encode_substream(entries, from, symbols, end, carries[warp]);
    if (threadIdx.x % kWarp == 0) block.substream_bytes[warp] = sizes[warp] = bytes;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  auto bytes = static_cast<std::uint32_t>(huffman::head_rest(head) + huffman::split_bytes(length));
  for (unsigned k = 0; k < huffman::substream_count(length); ++k) bytes += sizes[k];
  block.head = huffman::make_head(huffman::head_mode(head), bytes);
}

// A warp per plane.
__global__ void __launch_bounds__(kWarp) place(HuffmanSpace space) {
  HuffmanPlane& plane = space.planes[blockIdx.x];
  const auto count = static_cast<std::uint32_t>(huffman::block_count(plane.bytes));
  std::uint32_t at = count * static_cast<std::uint32_t>(huffman::kHeadBytes);
  for (std::uint32_t first = 0; first < count; first += kWarp) {
    const std::uint32_t index = first + threadIdx.x;
    std::uint32_t bytes = 0;
    HuffmanBlock& block = space.blocks[space.slot(blockIdx.x, index < count ? index : 0)];
    if (index < count && huffman::head_mode(block.head) != BlockMode::Single) {
      bytes = huffman::head_rest(block.head);
    }
    const std::uint32_t before = warp_sum_before(bytes);
    if (index < count) block.body_at = at + before;
    at += __shfl_sync(kFullMask, before + bytes, kWarp - 1);
  }
  if (threadIdx.x == 0) plane.coded_bytes = at;
}

// By the whole block of threads: the table of `lengths`, in its coded form.
__device__ void make_table(const std::uint8_t* lengths, std::uint32_t* words) {
  __shared__ std::uint32_t present_in_warp[kSymbols / kWarp];
  constexpr unsigned kWords = (huffman::kMaxTableBytes + 3) / 4;
  const unsigned warp = threadIdx.x / kWarp;
  const std::uint32_t length = lengths[threadIdx.x];
  const unsigned present = __ballot_sync(kFullMask, length != 0);
  if (threadIdx.x < kWords) words[threadIdx.x] = 0;
  if (threadIdx.x % kWarp == 0) present_in_warp[warp] = static_cast<unsigned>(__popc(present));
  __syncthreads();
  if (threadIdx.x % kWarp == 0) words[warp] = present;
  unsigned rank = lanes_before(present);
  for (unsigned i = 0; i < warp; ++i) rank += present_in_warp[i];
  if (length != 0) {
    atomicOr(&words[huffman::kTableBitmapBytes / 4 + rank / 8], (length - 1) << rank % 8 * 4);
  }
  __syncthreads();
}

// A block of threads per block of a plane: its head and body to their places.
__global__ void __launch_bounds__(kWriteThreads) write(HuffmanSpace space) {
  __shared__ std::uint32_t table[(huffman::kMaxTableBytes + 3) / 4];
  const HuffmanPlane& plane = space.planes[blockIdx.x / space.blocks_per_plane];
  const unsigned index = blockIdx.x % space.blocks_per_plane;
  const std::uint32_t length = huffman_block_length(plane.bytes, index);
  if (length == 0) return;
  const HuffmanBlock& block = space.blocks[blockIdx.x];
  if (threadIdx.x == 0) store_u32(plane.to + index * huffman::kHeadBytes, block.head);
  std::uint8_t* to = plane.to + block.body_at;
  const std::uint32_t bytes = huffman::head_rest(block.head);
  if (huffman::head_mode(block.head) == BlockMode::Raw) {
    copy_bytes(to, plane.from + std::uint64_t{index} * huffman::kBlockBytes, bytes, threadIdx.x,
               kWriteThreads);
  }
  if (!is_coded(block.head)) return;
  const auto count = static_cast<unsigned>(huffman::substream_count(length));
  const auto split = static_cast<std::uint32_t>(huffman::split_bytes(length));
  std::uint32_t at = bytes - split;
  for (unsigned k = 0; k < count; ++k) at -= block.substream_bytes[k];
  if (at != 0) {  // bytes of the table
    make_table(space.codes[blockIdx.x].lengths, table);
    copy_bytes(to, reinterpret_cast<const std::uint8_t*>(table), at, threadIdx.x, kWriteThreads);
  }
  if (threadIdx.x < split / 4) store_u32(to + at + 4 * threadIdx.x, block.substream_bytes[threadIdx.x]);
  at += split;
  for (unsigned k = 0; k < count; ++k) {
    const std::uint64_t room = std::uint64_t{blockIdx.x} * kMaxSubstreams + k;
    const std::uint32_t size = block.substream_bytes[k];
    copy_bytes(to + at, space.substreams + (room + 1) * space.room_per_substream - size, size, threadIdx.x,
               kWriteThreads);
    at += size;
  }
}

Grid block_per_block(const HuffmanSpace& space, unsigned threads) {
  return {std::uint64_t{space.plane_count} * space.blocks_per_plane, threads};
}

}  // namespace

core::Status encode_huffman_blocks(const HuffmanSpace& space, Stream stream) {
  GEOCOMM_RETURN_IF_ERROR(choose_huffman_modes(space, stream));
  GEOCOMM_RETURN_IF_ERROR(launch(encode, block_per_block(space, kSubstreamThreads), stream, space));
  return launch(place, Grid{space.plane_count, kWarp}, stream, space);
}

core::Status write_huffman_planes(const HuffmanSpace& space, Stream stream) {
  return launch(write, block_per_block(space, kWriteThreads), stream, space);
}

HuffmanSpace take_huffman_space(std::uint64_t planes, std::size_t plane_bytes, bool is_received,
                                SpaceCutter& room) {
  // The longest substream is that of the largest block, or of the largest that has but one.
  const std::size_t largest = std::min(plane_bytes, huffman::kBlockBytes);
  HuffmanSpace space{};
  space.room_per_substream = substream_room(std::min(largest, huffman::kSplitFrom - 1));
  if (largest >= huffman::kSplitFrom) {
    space.room_per_substream = std::max<std::uint64_t>(space.room_per_substream, substream_room(largest));
  }
  space.plane_count = static_cast<std::uint32_t>(planes);
  space.blocks_per_plane =
      static_cast<std::uint32_t>(huffman::block_count(std::max<std::size_t>(plane_bytes, 1)));
  const std::uint64_t blocks = planes * space.blocks_per_plane;
  space.planes = room.take<HuffmanPlane>(planes);
  space.blocks = room.take<HuffmanBlock>(blocks);
  if (is_received) return space;
  space.codes = room.take<HuffmanCode>(blocks);
  space.substreams = room.take<std::uint8_t>(blocks * huffman::kMaxSubstreams * space.room_per_substream);
  return space;
}

}  // namespace geocomm::codec::cuda
