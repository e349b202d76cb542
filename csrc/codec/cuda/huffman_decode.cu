// Received planes whose heads have been read: all blocks at once, a warp per substream. Blocks that share a
// table each read it for themselves.
#include "codec/cuda/huffman.cuh"
#include "codec/cuda/verdict.h"

namespace geocomm::codec::cuda {
namespace {

using huffman::BlockMode;
using huffman::kLanes;
using huffman::kMaxCodeBits;
using huffman::kMaxSubstreams;
using huffman::kSymbols;
using huffman::kWordBits;

constexpr unsigned kThreads = kMaxSubstreams * kWarp;
constexpr unsigned kEntryLengthBits = 4;

struct Table {
  std::uint16_t entries[kWholeCode];  // length | symbol << kEntryLengthBits
  std::uint32_t codes[kSymbols];
  std::uint8_t lengths[kSymbols];
  std::uint32_t coded_bytes;  // 0: it is none
};

// By one warp: reads the table that `coded` begins with.
__device__ void parse_table(const std::uint8_t* coded, std::uint32_t bytes, Table& table) {
  const unsigned lane = threadIdx.x % kWarp;
  constexpr auto kBitmap = static_cast<std::uint32_t>(huffman::kTableBitmapBytes);
  if (lane == 0) table.coded_bytes = 0;
  __syncwarp();
  if (bytes < kBitmap) return;
  const std::uint32_t room = bytes - kBitmap;
  const std::uint32_t bits = coded[lane];
  std::uint32_t present = 0;
  std::uint32_t sum = 0;
  bool valid = true;
  for (unsigned group = 0; group < kSymbols; group += kWarp) {
    const std::uint32_t byte = __shfl_sync(kFullMask, bits, static_cast<int>(group / 8 + lane / 8));
    const bool is_there = (byte >> lane % 8 & 1) != 0;
    const unsigned mask = __ballot_sync(kFullMask, is_there);
    const std::uint32_t rank = present + lanes_before(mask);
    std::uint32_t length = 0;
    if (is_there && rank / 2 < room) length = (coded[kBitmap + rank / 2] >> rank % 2 * 4 & 15u) + 1;
    valid = valid && (!is_there || (length != 0 && length <= kMaxCodeBits));
    if (length != 0 && length <= kMaxCodeBits) sum += kWholeCode >> length;
    table.lengths[group + lane] = static_cast<std::uint8_t>(length);
    present += static_cast<unsigned>(__popc(mask));
  }
  sum = __reduce_add_sync(kFullMask, sum);
  const auto size = static_cast<std::uint32_t>(huffman::table_bytes(present));
  valid = __all_sync(kFullMask, valid) != 0 && sum == kWholeCode && size <= bytes;
  __syncwarp();
  if (!valid) return;
  make_codes(table.lengths, table.codes);
  if (lane == 0) table.coded_bytes = size;
}

// By all warps: the entries of each code.
__device__ void fill_entries(Table& table) {
  for (unsigned symbol = threadIdx.x / kWarp; symbol < kSymbols; symbol += kThreads / kWarp) {
    const std::uint32_t length = table.lengths[symbol];
    if (length == 0) continue;
    const std::uint32_t share = kWholeCode >> length;
    const std::uint32_t code = table.codes[symbol] & (kWholeCode - 1);
    const auto entry = static_cast<std::uint16_t>(length | symbol << kEntryLengthBits);
    for (std::uint32_t i = threadIdx.x % kWarp; i < share; i += kWarp) {
      table.entries[code * share + i] = entry;
    }
  }
}

// The words of a substream, 64 at a time in the registers of a warp, two to a lane, and the next 64 on their
// way. Behind the end they are 0.
class WordReader {
 public:
  __device__ __forceinline__ WordReader(const std::uint8_t* words, std::uint32_t bytes)
      : words_(words), bytes_(bytes), left_(bytes / 2) {
    current_ = load(0);
    next_ = load(1);
  }

  // The word of each lane that `takes` one, in order of the lanes; others get anything. False for all: words
  // lack.
  __device__ __forceinline__ bool take(bool takes, std::uint32_t& word) {
    const unsigned mask = __ballot_sync(kFullMask, takes);
    const auto count = static_cast<unsigned>(__popc(mask));
    const unsigned index = at_ + lanes_before(mask);
    const auto source = static_cast<int>(index / 2 % kWarp);
    const std::uint32_t here = __shfl_sync(kFullMask, current_, source);
    const std::uint32_t there = __shfl_sync(kFullMask, next_, source);
    word = (index < kWindow ? here : there) >> index % 2 * 16 & 0xFFFF;
    if (count > left_) return false;
    left_ -= count;
    at_ += count;
    if (at_ >= kWindow) {
      at_ -= kWindow;
      current_ = next_;
      next_ = load(++window_);
    }
    return true;
  }

  __device__ __forceinline__ bool is_at_end() const { return left_ == 0; }

 private:
  static constexpr unsigned kWindow = 2 * kWarp;

  __device__ __forceinline__ std::uint32_t load(std::uint32_t window) const {
    const std::uint32_t at = (window * kWarp + threadIdx.x % kWarp) * 4;
    if (at + 4 <= bytes_) return load_any_u32(words_ + at);
    return at < bytes_ ? load_u16(words_ + at) : 0;
  }

  const std::uint8_t* words_;
  std::uint32_t bytes_;
  std::uint32_t left_;
  std::uint32_t current_;
  std::uint32_t next_;
  std::uint32_t window_ = 1;
  unsigned at_ = 0;
};

// The bits [at, at + count) of a carry of `bytes` bytes, the first in the low end; count is at most 15.
__device__ std::uint32_t carry_bits(const std::uint8_t* carry, std::uint32_t bytes, std::uint32_t at,
                                    std::uint32_t count) {
  std::uint32_t bits = 0;
  for (std::uint32_t i = 0; i < 3; ++i) {
    if (at / 8 + i < bytes) bits |= std::uint32_t{carry[at / 8 + i]} << 8 * i;
  }
  return bits >> at % 8 & ((1u << count) - 1);
}

// By one warp. False: the bytes do not decode to exactly so many symbols.
__device__ bool decode_substream(const std::uint16_t* entries, const std::uint8_t* coded, std::uint32_t bytes,
                                 std::uint8_t* to, std::uint32_t symbols) {
  constexpr auto kCounts = static_cast<std::uint32_t>(huffman::kCarryCountBytes);
  const unsigned lane = threadIdx.x % kWarp;
  if (bytes < kCounts || bytes % 2 != 0) return false;
  std::uint32_t held = coded[lane / 2] >> lane % 2 * 4 & 15u;
  const std::uint32_t carry_at = warp_sum_before(held);
  const std::uint32_t total = __shfl_sync(kFullMask, carry_at + held, kWarp - 1);
  const auto carry = static_cast<std::uint32_t>(huffman::carry_bytes(total));
  if (bytes - kCounts < carry) return false;
  std::uint32_t bits = carry_bits(coded + kCounts, carry, carry_at, held);
  bits = held == 0 ? 0 : bits << (32 - held);
  WordReader words(coded + kCounts + carry, bytes - kCounts - carry);
  for (std::uint32_t first = 0; first < symbols; first += kLanes) {
    const bool is_there = symbols - first > lane;
    const bool takes = is_there && held < kWordBits;
    std::uint32_t word;
    if (!words.take(takes, word)) return false;
    if (takes) {
      bits |= word << (kWordBits - held);
      held += kWordBits;
    }
    const std::uint32_t entry = entries[bits >> (32 - kMaxCodeBits)];
    const std::uint32_t length = entry & ((1u << kEntryLengthBits) - 1);
    if (is_there) to[first + lane] = static_cast<std::uint8_t>(entry >> kEntryLengthBits);
    bits <<= length;
    held -= length;
  }
  return words.is_at_end();
}

__global__ void __launch_bounds__(kThreads) decode(HuffmanSpace space, std::uint64_t* verdict) {
  __shared__ Table table;
  if (is_over_for_block(verdict)) return;
  const std::uint32_t plane_index = blockIdx.x / space.blocks_per_plane;
  const HuffmanPlane& plane = space.planes[plane_index];
  const unsigned index = blockIdx.x % space.blocks_per_plane;
  const std::uint32_t length = huffman_block_length(plane.bytes, index);
  if (length == 0) return;
  const HuffmanBlock& block = space.blocks[blockIdx.x];
  std::uint8_t* to = plane.to + std::uint64_t{index} * huffman::kBlockBytes;
  const std::uint8_t* body = plane.from + block.body_at;
  std::uint32_t bytes = huffman::head_rest(block.head);
  const BlockMode mode = huffman::head_mode(block.head);
  if (mode == BlockMode::Raw) {
    copy_bytes(to, body, length, threadIdx.x, kThreads);
    return;
  }
  if (mode == BlockMode::Single) {
    for (std::uint32_t i = threadIdx.x; i < length; i += kThreads) to[i] = static_cast<std::uint8_t>(bytes);
    return;
  }

  const unsigned warp = threadIdx.x / kWarp;
  if (warp == 0) {
    const HuffmanBlock& own = space.blocks[space.slot(plane_index, block.table_block)];
    parse_table(plane.from + own.body_at, huffman::head_rest(own.head), table);
  }
  __syncthreads();
  bool sound = table.coded_bytes != 0;
  if (sound) fill_entries(table);
  __syncthreads();
  if (sound && mode == BlockMode::OwnTable) {
    body += table.coded_bytes;
    bytes -= table.coded_bytes;
  }
  const auto split = static_cast<std::uint32_t>(huffman::split_bytes(length));
  const auto count = static_cast<unsigned>(huffman::substream_count(length));
  sound = sound && bytes >= split;
  if (sound && warp < count) {
    const std::uint8_t* coded = body + split;
    std::uint32_t left = bytes - split;
    std::uint32_t own = left;
    for (unsigned k = 0; k <= warp && sound; ++k) {
      own = k + 1 < count ? load_u32(body + 4 * k) : left;
      sound = own <= left;
      if (!sound || k == warp) break;
      coded += own;
      left -= own;
    }
    sound = sound && decode_substream(table.entries, coded, own, to + warp * huffman::substream_step(length),
                                      static_cast<std::uint32_t>(huffman::substream_length(length, warp)));
  }
  if (!sound && threadIdx.x % kWarp == 0) report(verdict, Fault::Plane, plane.frame);
}

}  // namespace

core::Status decode_huffman_planes(const HuffmanSpace& space, std::uint64_t* verdict, Stream stream) {
  const Grid grid{std::uint64_t{space.plane_count} * space.blocks_per_plane, kThreads};
  return launch(decode, grid, stream, space, verdict);
}

}  // namespace geocomm::codec::cuda
