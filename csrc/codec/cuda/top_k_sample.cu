// The threshold of Select::Global: carried in a word of the caller's, or found by a sample, and corrected by
// how much it let through. The arithmetic is that of top_k_threshold.cc, bit for bit: each operation on
// doubles is rounded, none fused.
#include "codec/cuda/top_k_digits.cuh"
#include "codec/cuda/top_k_stages.h"

namespace geocomm::codec::cuda {
namespace {

constexpr unsigned kThreads = kTopKThreads;
constexpr std::uint32_t kLeastBits = 1;
constexpr std::uint32_t kMostBits = kInfBits - 1;

// Not one of the magnitudes that a threshold can be: 0, NaN, Inf and whatever is negative.
__device__ bool is_threshold(const float* carried) {
  if (carried == nullptr) return false;
  const std::uint32_t bits = __float_as_uint(*carried);
  return bits >= kLeastBits && bits <= kMostBits;
}

__device__ std::uint64_t first_of_run(const Sampling& sampling, std::uint32_t run) {
  if (sampling.part == 0) return 0;
  const std::uint64_t draw = philox(run, 0).w[0];
  const std::uint64_t most = std::uint64_t{1} << 32;
  const std::uint64_t places = sampling.part - sampling.run + 1;
  return run * sampling.part + ((places < most ? places : most) * draw >> 32);
}

template <core::DType kType, bool kFeedback>
__global__ void __launch_bounds__(kThreads) sample(TopKEncode args, ThresholdArgs threshold) {
  if (is_threshold(threshold.carried)) return;
  const std::uint64_t index = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= threshold.samples) return;
  const auto run = static_cast<std::uint32_t>(index / threshold.sampling.run);
  const std::uint64_t element = first_of_run(threshold.sampling, run) + index % threshold.sampling.run;
  const Quad values = load_values<kType, kFeedback>(args.src, args.residual, element, 1);
  args.space.sample[index] = key_of(word_of(values.v[0]));
}

// One block. A sampled threshold is just below the magnitude that the right share of the sample reaches.
__global__ void __launch_bounds__(kThreads) find(TopKEncode args, ThresholdArgs threshold) {
  __shared__ __align__(16) std::uint32_t bins[kBins];
  __shared__ DigitSearch::Room room;
  const bool is_carried = is_threshold(threshold.carried);
  std::uint32_t bits = kLeastBits;
  if (is_carried) {
    bits = __float_as_uint(*threshold.carried);
  } else if (args.plan.elements != 0) {
    DigitSearch search;
    search.begin(threshold.rank);
    while (!search.is_whole()) {
      search.clear(bins);
      for (std::uint64_t i = threadIdx.x; i < threshold.samples; i += kThreads) {
        search.count(bins, args.space.sample[i]);
      }
      search.next(bins, room);
    }
    // Of a key the magnitude is one less, and the threshold one less again.
    bits = search.prefix() < kLeastBits + 2 ? kLeastBits : search.prefix() - 2;
    bits = bits < kMostBits ? bits : kMostBits;
  }
  if (threadIdx.x == 0) *args.space.threshold = {__uint_as_float(bits), is_carried ? 1u : 0u};
}

// Of a positive normal number.
__device__ double log2_of(double x) {
  constexpr long long kOneBits = 1023LL << 52;
  const long long bits = __double_as_longlong(x);
  double exponent = __dsub_rn(static_cast<double>(bits >> 52), 1023.0);
  double mantissa = __longlong_as_double((bits & ((1LL << 52) - 1)) | kOneBits);
  if (mantissa > 1.4142135623730951) {
    mantissa = __dmul_rn(mantissa, 0.5);
    exponent = __dadd_rn(exponent, 1.0);
  }
  const double s = __ddiv_rn(__dsub_rn(mantissa, 1.0), __dadd_rn(mantissa, 1.0));
  const double square = __dmul_rn(s, s);
  double sum = 0.0;
  for (int odd = 11; odd > 0; odd -= 2) {
    sum = __dadd_rn(__dmul_rn(sum, square), __ddiv_rn(1.0, static_cast<double>(odd)));
  }
  constexpr double kTwoOverLn2 = 2.8853900817779268;
  return __dadd_rn(exponent, __dmul_rn(__dmul_rn(kTwoOverLn2, s), sum));
}

__device__ double clamped(double value, double least, double most) {
  return value < least ? least : most < value ? most : value;
}

__device__ float corrected(const ThresholdWord& used, const ThresholdTarget& target, std::uint64_t elements,
                           std::uint64_t chosen) {
  if (elements == 0) return used.is_carried != 0 ? used.value : 0.0f;
  const auto found = static_cast<double>(chosen);
  const bool is_far_off = found > target.too_many || __dmul_rn(kThresholdFarOff, found) < target.elements;
  if (used.is_carried != 0 && is_far_off) return 0.0f;
  const double all = __dadd_rn(static_cast<double>(elements), 1.0);
  const double wanted_log = log2_of(__ddiv_rn(all, __dadd_rn(target.elements, 0.5)));
  const double found_log = log2_of(__ddiv_rn(all, __dadd_rn(found, 0.5)));
  const double ratio =
      clamped(__ddiv_rn(wanted_log, found_log), __ddiv_rn(1.0, kThresholdFarOff), kThresholdFarOff);
  const double factor = __dsqrt_rn(__dmul_rn(ratio, __dsqrt_rn(ratio)));
  const double next = __dmul_rn(static_cast<double>(used.value), factor);
  return __double2float_rn(clamped(next, static_cast<double>(__uint_as_float(kLeastBits)),
                                   static_cast<double>(__uint_as_float(kMostBits))));
}

// One block.
__global__ void __launch_bounds__(kThreads) correct(TopKEncode args, ThresholdArgs threshold) {
  std::uint64_t chosen = 0;
  for (std::uint32_t frame = threadIdx.x; frame < args.plan.frames; frame += kThreads) {
    chosen += args.space.frames[frame].head.count;
  }
  std::uint64_t total;
  sum_before<kThreads>(chosen, total);
  if (threadIdx.x != 0) return;
  *threshold.carried = corrected(*args.space.threshold, threshold.target, args.plan.elements, total);
}

}  // namespace

core::Status find_threshold(core::DType dtype, const TopKEncode& args, const ThresholdArgs& threshold,
                            Stream stream) {
  if (args.plan.elements != 0) {
    const Grid grid{(threshold.samples + kThreads - 1) / kThreads, kThreads};
    GEOCOMM_RETURN_IF_ERROR(with_compressible(dtype, [&]<core::DType kType>() {
      return args.residual.data != nullptr ? launch(sample<kType, true>, grid, stream, args, threshold)
                                           : launch(sample<kType, false>, grid, stream, args, threshold);
    }));
  }
  return launch(find, Grid{1, kThreads}, stream, args, threshold);
}

core::Status correct_threshold(const TopKEncode& args, const ThresholdArgs& threshold, Stream stream) {
  if (threshold.carried == nullptr) return core::Status::ok();
  return launch(correct, Grid{1, kThreads}, stream, args, threshold);
}

}  // namespace geocomm::codec::cuda
