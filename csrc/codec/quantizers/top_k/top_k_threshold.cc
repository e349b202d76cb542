#include "codec/quantizers/top_k/top_k_threshold.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "codec/frames/elements.h"
#include "codec/frames/thread_scratch.h"
#include "codec/quantizers/top_k/top_k_format.h"
#include "codec/quantizers/top_k/top_k_select.h"
#include "core/philox.h"

namespace geocomm::codec {
namespace {

constexpr float kLeast = std::numeric_limits<float>::denorm_min();
constexpr float kMost = std::numeric_limits<float>::max();
std::uint64_t first_of_run(const Sampling& sampling, std::uint64_t index) {
  if (sampling.part == 0) return 0;
  const std::uint32_t draw = core::philox4x32({static_cast<std::uint32_t>(index), 0, 0, 0}, {0, 0})[0];
  const std::uint64_t places = std::min(sampling.part - sampling.run + 1, std::uint64_t{1} << 32);
  return index * sampling.part + ((places * draw) >> 32);
}

template <core::DType kType, Residual kResidual>
void sample(const Sampling& sampling, const std::byte* src, const ErrorFeedback& feedback, float* values) {
  for (std::uint64_t index = 0; index < sampling.runs; ++index) {
    const std::uint64_t first = first_of_run(sampling, index);
    for (std::uint64_t i = 0; i < sampling.run; ++i) {
      const float value = load_value<kType, kResidual>(src, feedback.residual, feedback.decay, first + i);
      *values++ = std::isnan(value) ? std::bit_cast<float>(kCanonicalNan) : value;
    }
  }
}

// The rank-th largest magnitude of a sample.
std::int32_t ranked_magnitude(const float* values, std::size_t count, std::size_t rank) {
  const Cut cut = rank < count ? cut_largest(values, count, rank, -1) : Cut{-1, 0};
  if (cut.equal > 0) return cut.above;
  std::int32_t least = kCanonicalNan;
  for (std::size_t i = 0; i < count; ++i) {
    const auto magnitude = std::bit_cast<std::int32_t>(std::fabs(values[i]));
    if (magnitude > cut.above) least = std::min(least, magnitude);
  }
  return least;
}

// Just below the magnitude that the right share of the sample reaches.
float find_threshold(const CodecSpec& spec, core::DType dtype, const std::byte* src, std::uint64_t elements,
                     const ErrorFeedback& feedback) {
  if (elements == 0) return kLeast;
  const Sampling sampling(elements);
  const auto count = static_cast<std::size_t>(sample_size(sampling));
  auto* values = reinterpret_cast<float*>(thread_scratch(ScratchUse::Values, count * sizeof(float)).data());
  with_compressible(dtype, [&]<core::DType kType>() {
    with_residual(residual_kind(feedback),
                  [&]<Residual kResidual>() { sample<kType, kResidual>(sampling, src, feedback, values); });
  });
  const std::int32_t magnitude = ranked_magnitude(values, count, sample_rank(spec, count));
  return std::bit_cast<float>(
      std::clamp(magnitude - 1, std::bit_cast<std::int32_t>(kLeast), std::bit_cast<std::int32_t>(kMost)));
}

// log2 of a positive normal number, to 1e-9: of a mantissa near 1 by the series of the inverse hyperbolic
// tangent. The library's own differs from machine to machine.
double log2_of(double x) {
  constexpr std::uint64_t kOneBits = std::uint64_t{1023} << 52;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  double exponent = static_cast<double>(bits >> 52) - 1023.0;
  double mantissa = std::bit_cast<double>((bits & ((std::uint64_t{1} << 52) - 1)) | kOneBits);
  if (mantissa > 1.4142135623730951) {
    mantissa = mantissa * 0.5;
    exponent = exponent + 1.0;
  }
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = s * s;
  double sum = 0.0;
  for (const double odd : {11.0, 9.0, 7.0, 5.0, 3.0, 1.0}) sum = sum * square + 1.0 / odd;
  constexpr double kTwoOverLn2 = 2.8853900817779268;
  return exponent + kTwoOverLn2 * s * sum;
}

}  // namespace

GlobalThreshold::GlobalThreshold(const CodecSpec& spec, core::DType dtype, const std::byte* src,
                                 std::uint64_t elements, const CompressOptions& options)
    : target_(spec, elements), elements_(elements) {
  const float carried = options.threshold != nullptr ? *options.threshold : 0.0f;
  is_carried_ = carried > 0.0f && carried <= kMost;
  value_ = is_carried_ ? carried : find_threshold(spec, dtype, src, elements, options.feedback);
}

// Supposing that magnitudes fall off as exp(-(t / scale)^p), the share that passes tells the scale, and the
// scale the threshold: t' = t * (log(share wanted) / log(share found))^(1 / p). p is 1 for a Laplacian and
// tends to 2 for a Gaussian; 4/3 converges for both, and for heavier tails.
float GlobalThreshold::corrected(std::uint64_t chosen) const {
  if (elements_ == 0) return is_carried_ ? value_ : 0.0f;
  const double found = static_cast<double>(chosen);
  if (is_carried_ && (found > target_.too_many || kThresholdFarOff * found < target_.elements)) return 0.0f;
  // Half an element more keeps both shares between 0 and 1.
  const double all = static_cast<double>(elements_) + 1.0;
  const double wanted_log = log2_of(all / (target_.elements + 0.5));
  const double found_log = log2_of(all / (found + 0.5));
  const double ratio = std::clamp(wanted_log / found_log, 1.0 / kThresholdFarOff, kThresholdFarOff);
  const double factor = std::sqrt(ratio * std::sqrt(ratio));
  const double next = std::clamp(static_cast<double>(value_) * factor, double{kLeast}, double{kMost});
  return static_cast<float>(next);
}

}  // namespace geocomm::codec
