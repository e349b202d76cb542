// Chooses: a block of threads per chunk. Each thread holds sixteen elements, four of each quarter of the
// chunk, and of each element its key.
//
// A search by digits finds the bound between chosen and not; mostly the second one parts them. Of equal keys
// the first are taken, so places are counted in order: a prefix sum over lanes, of the four quarters side by
// side in bytes, then one over warps and quarters.
#include "codec/cuda/huffman_device.cuh"
#include "codec/cuda/top_k_digits.cuh"
#include "codec/cuda/top_k_stages.h"

namespace geocomm::codec::cuda {
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

}  // namespace geocomm::codec::cuda
