// The kernels of TopK that encode, but for those that code values: chunks choose, and places become an
// index.
#include <cstdint>

#include "codec/cuda/device.h"
#include "codec/cuda/huffman.cuh"
#include "codec/cuda/stages.h"

namespace geocomm::codec::cuda {

// The rank-th largest of many keys, by their digits from the highest: of each digit a histogram tells which
// value that key has; those that agree with it so far are counted in the next.

// An element as a word: its sign, and its key, which is the bits of the magnitude, plus one, so that 0 is no
// element. NaN are all the same.
inline constexpr std::uint32_t kCanonicalNanBits = 0x7FC00000;
__device__ __forceinline__ std::uint32_t word_of(float value) {
  const std::uint32_t bits = is_nan(value) ? kCanonicalNanBits : __float_as_uint(value);
  return bits + 1;
}
__device__ __forceinline__ std::uint32_t key_of(std::uint32_t word) {
  return word & kMagnitude;
}
__device__ __forceinline__ float value_of(std::uint32_t word) {
  return __uint_as_float(word - 1);
}

inline constexpr unsigned kKeyBits = 31;
inline constexpr unsigned kDigits = 3;
inline constexpr unsigned kBins = 2048;
__device__ __forceinline__ unsigned digit_shift(unsigned digit) {
  return 10 * (kDigits - 1 - digit);
}

// For a block of kTopKThreads threads, all of which call everything.
class DigitSearch {
 public:
  // `rank`: from 1; there are as many keys.
  __device__ void begin(std::uint32_t rank) {
    prefix_ = 0;
    rank_ = rank;
    digit_ = 0;
  }
  // Before a digit's keys are counted.
  __device__ void clear(std::uint32_t* bins) const {
#pragma unroll
    for (unsigned i = 0; i < kBinsPerThread; ++i) bins[i * kTopKThreads + threadIdx.x] = 0;
    __syncthreads();
  }
  __device__ void count(std::uint32_t* bins, std::uint32_t key) const {
    const unsigned shift = digit_shift(digit_);
    const unsigned above = digit_ == 0 ? kKeyBits : digit_shift(digit_ - 1);
    if (key == 0 || key >> above != prefix_ >> above) return;
    atomicAdd(&bins[key >> shift & ((1u << (above - shift)) - 1)], 1u);
  }

  struct Room {
    std::uint32_t bin;
    std::uint32_t rank;
    std::uint32_t members;
  };
  // When all have been counted. True: it was the last digit, or all keys that agree so far are among the
  // largest, whatever their other digits are.
  __device__ bool next(const std::uint32_t* bins, Room& room) {
    __syncthreads();
    // Thread 0 has the highest bins.
    const unsigned first = kBins - kBinsPerThread * (threadIdx.x + 1);
    const auto* pairs = reinterpret_cast<const uint4*>(bins + first);
    const uint4 low = pairs[0];
    const uint4 high = pairs[1];
    const std::uint32_t own[kBinsPerThread] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    std::uint32_t sum = 0;
#pragma unroll
    for (unsigned i = 0; i < kBinsPerThread; ++i) sum += own[i];
    std::uint32_t total;
    std::uint32_t before = sum_before<kTopKThreads>(sum, total);
    if (before < rank_ && rank_ <= before + sum) {
#pragma unroll
      for (int i = kBinsPerThread - 1; i >= 0; --i) {
        if (before < rank_ && rank_ <= before + own[i]) {
          room.bin = first + static_cast<unsigned>(i);
          room.rank = rank_ - before;
          room.members = own[i];
        }
        before += own[i];
      }
    }
    __syncthreads();
    prefix_ |= room.bin << digit_shift(digit_);
    rank_ = room.rank;
    ++digit_;
    return digit_ == kDigits || room.members == rank_;
  }

  // The digits found so far, the others 0; the key's rank among those that begin with them.
  __device__ std::uint32_t prefix() const { return prefix_; }
  __device__ std::uint32_t rank() const { return rank_; }
  __device__ bool takes_all(const Room& room) const { return room.members == rank_; }

 private:
  static constexpr unsigned kBinsPerThread = kBins / kTopKThreads;
  static_assert(kBinsPerThread == 8);

  std::uint32_t prefix_;
  std::uint32_t rank_;
  unsigned digit_;
};

// Chooses: a block of threads per chunk. Each thread holds sixteen elements, four of each quarter of the
// chunk, and of each element its key.
//
// A search by digits finds the bound between chosen and not; mostly the second one parts them. Of equal keys
// the first are taken, so places are counted in order: a prefix sum over lanes, of the four quarters side by
// side in bytes, then one over warps and quarters.

namespace {

constexpr unsigned kThreads = kTopKThreads;
constexpr unsigned kQuarters = 4;
constexpr unsigned kQuarter = kTopKChunk / kQuarters;
static_assert(kQuarter == 4 * kThreads);
constexpr unsigned kGroups = kQuarters * kThreads / kWarp;  // of 128 elements in order
static_assert(kGroups == kWarp);

// So many blocks fit on a multiprocessor that others work while some wait for memory.
constexpr int kBlocksAtOnce = 5;

// Keys above `key` are chosen, and the first `equal` of those that equal it.
struct Bound {
  std::uint32_t key;
  std::uint32_t equal;
};

struct __align__(16) Choice {
  union {
    std::uint32_t bins[kBins];
    std::uint16_t places[kTopKChunk / 2];  // of chosen elements, in the chunk
  };
  DigitSearch::Room search;
  std::uint32_t groups[kGroups];
  std::uint32_t count;
  std::uint32_t longs;  // 255s in gaps
};

struct Elements {
  std::uint32_t words[kQuarters][4];

  __device__ __forceinline__ std::uint32_t key(unsigned q, unsigned c) const { return key_of(words[q][c]); }
};

template <typename Run>
__device__ __forceinline__ void for_elements(Run&& run) {
#pragma unroll
  for (unsigned q = 0; q < kQuarters; ++q) {
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) run(q, c);
  }
}

// Leaves the `rank` largest keys.
__device__ Bound find_bound(const Elements& elements, std::uint32_t rank, Choice& choice) {
  DigitSearch search;
  search.begin(rank);
  do {
    search.clear(choice.bins);
    for_elements([&](unsigned q, unsigned c) { search.count(choice.bins, elements.key(q, c)); });
  } while (!search.next(choice.bins, choice.search));
  const std::uint32_t key = search.prefix();
  if (search.takes_all(choice.search)) return {key == 0 ? 0 : key - 1, 0};
  return {key, search.rank()};
}

template <core::DType kType, bool kFeedback>
__device__ Elements load(const std::uint8_t* src, const ResidualView& residual, std::uint32_t first,
                         std::uint32_t length) {
  Elements elements;
#pragma unroll
  for (unsigned q = 0; q < kQuarters; ++q) {
    const std::uint32_t at = q * kQuarter + 4 * threadIdx.x;
    const unsigned count = four_from(at, length);
    const Quad values = load_values<kType, kFeedback>(src, residual, first + at, count);
    if constexpr (kFeedback) store_residual(residual, first + at, values, Quad{}, count);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      elements.words[q][c] = c < count ? word_of(values.v[c]) : 0;
    }
  }
  return elements;
}

__device__ __forceinline__ std::uint32_t byte_of(std::uint64_t bytes, unsigned index) {
  return static_cast<std::uint32_t>(bytes >> 8 * index) & 0xFF;
}

// Where each thread's elements stand among the chosen ones: for each quarter, how many keys are above the
// bound (low half) or equal to it (high half) before its own. The whole chunk's sum is returned.
__device__ std::uint32_t count_before(const Elements& elements, const Bound& bound, Choice& choice,
                                      std::uint32_t (&before)[kQuarters]) {
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  std::uint64_t own = 0;  // byte q: above in quarter q; byte 4 + q: equal. 128 at most, in a warp.
  for_elements([&](unsigned q, unsigned c) {
    const std::uint32_t key = elements.key(q, c);
    own += std::uint64_t{key > bound.key ? 1u : 0u} << 8 * q;
    own += std::uint64_t{key != 0 && key == bound.key ? 1u : 0u} << (32 + 8 * q);
  });
  const std::uint64_t lanes_before = warp_sum_before(own);
  if (lane == kWarp - 1) {
    const std::uint64_t upto = lanes_before + own;
#pragma unroll
    for (unsigned q = 0; q < kQuarters; ++q) {
      choice.groups[q * kTopKWarps + warp] = byte_of(upto, q) | byte_of(upto, 4 + q) << 16;
    }
  }
  __syncthreads();
  if (warp == 0) {
    const std::uint32_t group = choice.groups[lane];
    const std::uint32_t groups_before = warp_sum_before(group);
    choice.groups[lane] = groups_before;
    if (lane == kWarp - 1) choice.count = groups_before + group;
  }
  __syncthreads();
#pragma unroll
  for (unsigned q = 0; q < kQuarters; ++q) {
    before[q] = choice.groups[q * kTopKWarps + warp] + byte_of(lanes_before, q) +
                (byte_of(lanes_before, 4 + q) << 16);
  }
  return choice.count;
}

template <core::DType kType, bool kFeedback>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce) choose(TopKEncode args) {
  __shared__ Choice choice;
  const std::uint64_t element = std::uint64_t{blockIdx.x} * kTopKChunk;
  const std::uint32_t frame = args.plan.frame_of_element(element);
  const auto first = static_cast<std::uint32_t>(element - frame * args.plan.frame_elements);
  const std::uint32_t index = first / kTopKChunk;
  const std::uint32_t elements_of_frame = args.plan.extent(frame).elements;
  if (first >= elements_of_frame) return;
  const std::uint32_t left = elements_of_frame - first;
  const std::uint32_t length = left < kTopKChunk ? left : kTopKChunk;
  const std::uint32_t limit = (args.space.chunk_limit * length + kTopKChunk - 1) / kTopKChunk;

  const Elements elements =
      load<kType, kFeedback>(args.plan.elements_at(args.src, args.plan.element_bytes, frame),
                             args.plan.residual_of(args.residual, frame), first, length);
  if (threadIdx.x == 0) choice.longs = 0;
  const Bound bound = find_bound(elements, limit, choice);

  std::uint32_t before[kQuarters];
  const std::uint32_t counts = count_before(elements, bound, choice, before);
  const std::uint32_t equal = counts >> 16 < bound.equal ? counts >> 16 : bound.equal;
  const std::uint32_t count = (counts & 0xFFFF) + equal;
  const std::uint64_t at = args.space.first_value(frame) + std::uint64_t{index} * args.space.chunk_limit;
#pragma unroll
  for (unsigned q = 0; q < kQuarters; ++q) {
    std::uint32_t rank = before[q];
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      const std::uint32_t key = elements.key(q, c);
      const std::uint32_t equal_before = rank >> 16 < bound.equal ? rank >> 16 : bound.equal;
      const bool ties = key != 0 && key == bound.key;
      if (key > bound.key || (ties && rank >> 16 < bound.equal)) {
        const std::uint32_t slot = (rank & 0xFFFF) + equal_before;
        const std::uint32_t place = q * kQuarter + 4 * threadIdx.x + c;
        args.space.values[at + slot] = value_of(elements.words[q][c]);
        args.space.places[at + slot] = index * kTopKChunk + place;
        choice.places[slot] = static_cast<std::uint16_t>(place);
      }
      rank += key > bound.key ? 1u : ties ? 1u << 16 : 0u;
    }
  }
  __syncthreads();
  for (std::uint32_t i = 1 + threadIdx.x; i < count; i += kThreads) {
    const std::uint32_t gap = choice.places[i] - choice.places[i - 1] - 1u;
    if (gap >= kLongGap) atomicAdd(&choice.longs, gap / kLongGap);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  ChunkRecord record{};
  record.count = count;
  if (count != 0) {
    record.first_place = index * kTopKChunk + choice.places[0];
    record.last_place = index * kTopKChunk + choice.places[count - 1];
    record.inner_bytes = count - 1 + choice.longs;
  }
  args.space.chunks[std::uint64_t{frame} * args.space.chunks_per_frame + index] = record;
}

}  // namespace

core::Status choose_elements(core::DType dtype, const TopKEncode& args, Stream stream) {
  const Grid grid{(args.plan.elements + kTopKChunk - 1) / kTopKChunk, kThreads};
  return with_values(dtype, args.residual, [&]<core::DType kType, bool kFeedback>() {
    return launch(choose<kType, kFeedback>, grid, stream, args);
  });
}

// The places of chosen elements as the frame has them. A block of threads per frame finds where each chunk's
// part lies; then a warp per chunk writes it.

namespace {

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
