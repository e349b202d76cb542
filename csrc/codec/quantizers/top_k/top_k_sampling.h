// What the threshold of TopK with Select::Global is found from and measured by, on whichever device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "codec/quantizers/top_k/top_k_format.h"
#include "codec/spec/codec_spec.h"

namespace geocomm::codec {

// The sample: runs of 64 elements, one in each of as many equal parts, at a place of the part that is drawn
// by Philox, so that no period of the data falls in with the sample's. Few elements are all looked at.
struct Sampling {
  std::uint64_t runs = 1;
  std::uint64_t part = 0;  // elements from one run's part to the next; 0: the run begins at the first element
  std::uint64_t run = 0;   // elements of a run

  explicit Sampling(std::uint64_t elements) : run(elements) {
    constexpr std::uint64_t kRun = 64;
    constexpr std::uint64_t kElementsPerRun = 1024;
    constexpr std::uint64_t kFewestRuns = 64;
    constexpr std::uint64_t kMostRuns = 1024;
    if (elements <= kFewestRuns * kRun) return;
    runs = std::clamp(elements / kElementsPerRun, kFewestRuns, kMostRuns);
    part = elements / runs;
    run = kRun;
  }
};
inline constexpr std::uint64_t kMostSamples = 65536;

constexpr std::uint64_t sample_size(const Sampling& sampling) {
  return sampling.runs * sampling.run;
}
// How many of the sample are to pass.
constexpr std::size_t sample_rank(const CodecSpec& spec, std::uint64_t samples) {
  return share_of(std::clamp<std::size_t>(spec.k, 1, kTopKChunk / 2), samples);
}

// A threshold that lets through so many times more, or fewer, than it should does not fit at all.
inline constexpr double kThresholdFarOff = 8.0;

struct ThresholdTarget {
  double elements = 0;  // to choose
  double too_many = 0;  // more than these: far off

  ThresholdTarget() = default;
  // `all`: elements of the whole call.
  ThresholdTarget(const CodecSpec& spec, std::uint64_t all) {
    const double k = static_cast<double>(std::clamp<std::uint32_t>(spec.k, 1, kTopKChunk / 2));
    elements = std::max(static_cast<double>(all) * k / kTopKChunk, 1.0);
    // Where nearly all chunks give what they may, the count says nothing about the threshold any more.
    const double limit = 0.9 * static_cast<double>(frame_limit(spec, all));
    too_many =
        limit > 1.5 * elements ? std::min(limit, kThresholdFarOff * elements) : kThresholdFarOff * elements;
  }
};

}  // namespace geocomm::codec
