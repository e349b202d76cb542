// Counts of each block's bytes, the code for them, and the choice of the mode. A plane's blocks choose one
// after the other, since each may take the table of one before it; all the work is done before that.
#include "codec/cuda/block_scan.cuh"
#include "codec/cuda/huffman_device.cuh"
#include "codec/cuda/huffman_stages.h"

namespace geocomm::codec::cuda {
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

}  // namespace

core::Status choose_huffman_modes(const HuffmanSpace& space, Stream stream) {
  const Grid grid{std::uint64_t{space.plane_count} * space.blocks_per_plane, kThreads};
  GEOCOMM_RETURN_IF_ERROR(launch(measure, grid, stream, space));
  return launch(choose, Grid{space.plane_count, kWarp}, stream, space);
}

}  // namespace geocomm::codec::cuda
