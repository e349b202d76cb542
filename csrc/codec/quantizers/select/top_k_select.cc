#include "codec/quantizers/select/top_k_select.h"

#include <algorithm>
#include <array>
#include <bit>

#include "codec/frames/elements.h"
#include "codec/frames/thread_scratch.h"
#include "codec/quantizers/select/select_kernels.h"
#include "core/cpu.h"

namespace geocomm::codec {
namespace {

constexpr std::int32_t kAll = -1;

std::int32_t magnitude_of(float value) {
  return std::bit_cast<std::int32_t>(value) & ~static_cast<std::int32_t>(core::kFloatSignBit);
}

// NaN that differ only in how they were made must not differ in how they are ranked and sent.
void canonicalize(float* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(values[i]);
    const bool is_nan = magnitude_of(values[i]) > static_cast<std::int32_t>(core::kFloatInfBits);
    values[i] = std::bit_cast<float>(core::select_bits(is_nan, std::uint32_t{kCanonicalNan}, bits));
  }
}

// Keeps the k largest in place.
void keep_largest(const Cut& cut, std::size_t count, float* values, std::uint32_t* places) {
  std::size_t kept = 0;
  std::size_t equal = cut.equal;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t magnitude = magnitude_of(values[i]);
    const bool ties = magnitude == cut.above && equal > 0;
    equal -= static_cast<std::size_t>(ties);
    values[kept] = values[i];
    places[kept] = places[i];
    kept += static_cast<std::size_t>(magnitude > cut.above || ties);
  }
}

// Guesses what the k-th largest magnitude of a chunk is not below, from the chunk before: few candidates are
// then left to choose from. A wrong guess costs time only.
class Guess {
 public:
  std::int32_t bound() const { return bound_; }
  // Too few were above it: a lower one. Ends with kAll.
  void lower() {
    bound_ = misses_ < 2 && bound_ > kFourTimes ? bound_ - kFourTimes : kAll;
    ++misses_;
    margin_ = std::min(2 * margin_, kFourTimes);
  }
  void learn(std::size_t candidates, std::size_t k, std::int32_t cut) {
    misses_ = 0;
    if (candidates > 4 * k) margin_ = std::max(margin_ / 2, kLeastMargin);
    bound_ = std::max(std::min(cut, static_cast<std::int32_t>(core::kFloatInfBits) - 1) - margin_, kAll);
  }

 private:
  // In units of a magnitude: 2^23 is a factor of two.
  static constexpr std::int32_t kFourTimes = 1 << 24;
  static constexpr std::int32_t kLeastMargin = 1 << 17;
  std::int32_t bound_ = kAll;
  std::int32_t margin_ = 1 << 20;
  int misses_ = 0;
};

class Chooser {
 public:
  Chooser(const FrameInput& input, const SelectKernels& kernels)
      : input_(input),
        kernels_(kernels),
        residual_(residual_kind(input.options.feedback)),
        element_bytes_(core::size_of(input.dtype)),
        residual_bytes_(residual_ == Residual::None ? 0 : core::size_of(input.options.feedback.dtype)),
        collect_(kernels.collect[compressible_index(input.dtype)][static_cast<std::size_t>(residual_)]) {}

  // Appends to `values` and `places` the largest of the chunk at `first`; returns how many they are.
  std::size_t largest(std::size_t first, std::size_t length, float* values, std::uint32_t* places) {
    const std::size_t k = share_of(chunk_limit(input_.spec), length);
    std::size_t found = collect(first, length, guess_.bound(), values, places);
    while (found < k) {
      guess_.lower();
      const CollectInput again{reinterpret_cast<const std::byte*>(chunk_.data()),
                               nullptr,
                               1.0f,
                               length,
                               guess_.bound(),
                               static_cast<std::uint32_t>(first)};
      found =
          kernels_.collect[0][static_cast<std::size_t>(Residual::None)](again, chunk_.data(), values, places);
    }
    canonicalize(values, found);
    std::int32_t cut = guess_.bound();
    if (found > k) cut = keep(k, found, guess_.bound(), values, places);
    guess_.learn(found, k, cut);
    return k;
  }

 private:
  std::size_t collect(std::size_t first, std::size_t length, std::int32_t bound, float* values,
                      std::uint32_t* places) {
    const CollectInput chunk{input_.src + first * element_bytes_,
                             input_.options.feedback.residual + first * residual_bytes_,
                             input_.options.feedback.decay,
                             length,
                             bound,
                             static_cast<std::uint32_t>(first)};
    return collect_(chunk, chunk_.data(), values, places);
  }

  static std::int32_t keep(std::size_t k, std::size_t found, std::int32_t floor, float* values,
                           std::uint32_t* places) {
    const Cut cut = cut_largest(values, found, k, floor);
    keep_largest(cut, found, values, places);
    return cut.above;
  }

  const FrameInput& input_;
  const SelectKernels& kernels_;
  const Residual residual_;
  const std::size_t element_bytes_;
  const std::size_t residual_bytes_;
  const SelectKernels::Collect collect_;
  Guess guess_;
  alignas(64) std::array<float, kTopKChunk> chunk_;
};

}  // namespace

// The bound is found by doubling steps up from `floor`, then by halving the interval. Magnitudes lie far
// apart, so an interval that parts the k largest from the rest comes up long before the last bit.
Cut cut_largest(const float* values, std::size_t count, std::size_t k, std::int32_t floor) {
  const auto count_above = core::at_cpu_level<SelectKernels>().count_above;
  std::int32_t low = floor;           // more than k are above it
  std::int32_t high = kCanonicalNan;  // fewer than k are
  for (std::int32_t step = 1 << 19; step < high - low; step = std::min(2 * step, 1 << 28)) {
    const std::size_t above = count_above(values, count, low + step);
    if (above == k) return {low + step, 0};
    if (above < k) {
      high = low + step;
      break;
    }
    low += step;
  }
  std::size_t above_high = count_above(values, count, high);
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    const std::size_t above = count_above(values, count, middle);
    if (above == k) return {middle, 0};
    if (above > k) {
      low = middle;
    } else {
      high = middle;
      above_high = above;
    }
  }
  return {high, k - above_high};
}

Chosen choose_elements(const FrameInput& input) {
  const std::size_t room = frame_limit(input.spec, input.elements) + kTopKChunk;
  const auto floats = thread_scratch(ScratchUse::Values, 2 * room * sizeof(float));
  auto* values = reinterpret_cast<float*>(floats.data());
  auto* places = reinterpret_cast<std::uint32_t*>(
      thread_scratch(ScratchUse::Places, room * sizeof(std::uint32_t)).data());
  Chooser chooser(input, core::at_cpu_level<SelectKernels>());
  std::size_t count = 0;
  for (std::size_t first = 0; first < input.elements; first += kTopKChunk) {
    const std::size_t length = std::min<std::size_t>(kTopKChunk, input.elements - first);
    count += chooser.largest(first, length, values + count, places + count);
  }
  return {values, values + room, places, count};
}

void keep_lost(const ErrorFeedback& feedback, const Chosen& chosen) {
  with_residual(residual_kind(feedback), [&]<Residual kResidual>() {
    for (std::size_t i = 0; i < chosen.count; ++i) {
      store_residual<kResidual>(feedback.residual, chosen.places[i], chosen.lost[i], 0.0f);
    }
  });
}

}  // namespace geocomm::codec
