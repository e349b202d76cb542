// The loops of SelectKernels on vectors V (codec/simd). All is local to the file that
// includes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/frames/vector_elements.h"
#include "codec/quantizers/select/select_kernels.h"
#include "codec/simd/bits.h"

namespace geocomm::codec {
namespace {

inline constexpr std::size_t kGroup = 64;  // elements whose fate fits into one word

// Those above, written as they come. No branches: one that waits for memory would hold up the loads behind
// it.
template <typename V, bool kClosesUp = V::kClosesUpLanes>
class Chosen {
 public:
  Chosen(const CollectInput& input, const float* /*chunk*/, float* values, std::uint32_t* places)
      : places_(V::add(V::lane_numbers(), V::set_int(static_cast<int>(input.first_place)))),
        value_to_(values),
        place_to_(places) {}

  void add(std::size_t at, typename V::Floats value, std::uint32_t chosen) {
    const auto places = V::add(places_, V::set_int(static_cast<int>(at)));
    V::close_up(chosen, V::bits(value), value_to_ + found_);
    V::close_up(chosen, places, place_to_ + found_);
    found_ += count_ones(chosen);
  }
  void end_group() {}
  std::size_t end() const { return found_; }

 private:
  typename V::Ints places_;
  float* value_to_;
  std::uint32_t* place_to_;
  std::size_t found_ = 0;
};

// A chunk is loaded and compared without a branch, then searched. At the usual density a word has one or two,
// which are taken without a branch.
template <typename V>
class Chosen<V, false> {
 public:
  Chosen(const CollectInput& input, const float* chunk, float* values, std::uint32_t* places)
      : first_place_(input.first_place), chunk_(chunk), values_(values), places_(places) {}

  void add(std::size_t at, typename V::Floats /*value*/, std::uint32_t chosen) {
    group_ |= std::uint64_t{chosen} << at % kGroup;
  }
  void end_group() {
    groups_[size_++] = group_;
    group_ = 0;
  }
  std::size_t end() const {
    std::size_t found = 0;
    for (std::size_t group = 0; group < size_; ++group) {
      std::uint64_t left = groups_[group];
      std::size_t to = found;
      found += count_ones(left);
      do {
        for (int unrolled = 0; unrolled < 2; ++unrolled, ++to) {
          const std::size_t at = kGroup * group + zeros_below(left) % kGroup;  // the first where none is left
          values_[to] = chunk_[at];
          places_[to] = first_place_ + static_cast<std::uint32_t>(at);
          left &= left - 1;
        }
      } while (left != 0);
    }
    return found;
  }

 private:
  std::uint32_t first_place_;
  const float* chunk_;
  float* values_;
  std::uint32_t* places_;
  std::uint64_t group_ = 0;
  std::size_t size_ = 0;
  std::uint64_t groups_[kTopKChunk / kGroup];
};

// A page ahead, which the machine's own prefetcher does not cross. Behind the end it is no access.
template <std::size_t kElementBytes>
[[gnu::always_inline]] inline void prefetch_group(const std::byte* from) {
  constexpr std::size_t kAhead = 1024;  // elements
  for (std::size_t at = 0; at < kElementBytes * kGroup; at += 64) {
    __builtin_prefetch(from + kElementBytes * kAhead + at);
  }
}

// One group of elements, of which `there` exist: v to `chunk` and to the residual.
template <typename V, core::DType kType, Residual kResidual>
[[gnu::always_inline]] inline void collect_group(const std::byte* src, std::byte* residual,
                                                 typename V::Floats decay, typename V::Ints above,
                                                 std::uint64_t there, std::size_t first, float* chunk,
                                                 Chosen<V>& chosen) {
  for (std::size_t i = 0; i < kGroup; i += V::kLanes) {
    const auto value = load_values<V, kType, kResidual>(src, residual, decay, i);
    V::store(chunk + first + i, value);
    const auto magnitude = magnitude_bits<V>(value);
    if constexpr (kResidual != Residual::None) {
      const auto finite = V::floats(V::where(V::greater(V::set_int(kInfBits), magnitude), V::bits(value)));
      if constexpr (kResidual == Residual::Float32) V::store(residual + 4 * i, finite);
      if constexpr (kResidual == Residual::BFloat16) {
        store_saturated<V, core::DType::BFloat16, true>(residual, i, finite);
      }
    }
    const std::uint32_t is_above = V::bits_of(V::greater(magnitude, above));
    chosen.add(first + i, value, is_above & static_cast<std::uint32_t>(there >> i));
  }
  chosen.end_group();
}

template <typename V, core::DType kType, Residual kResidual>
std::size_t collect(const CollectInput& input, float* chunk, float* values, std::uint32_t* places) {
  constexpr std::size_t kSourceBytes = kType == core::DType::Float32 ? 4 : 2;
  constexpr std::size_t kResidualBytes = kResidual == Residual::None       ? 0
                                         : kResidual == Residual::BFloat16 ? 2
                                                                           : 4;
  const auto decay = V::set(input.decay);
  const auto above = V::set_int(input.above);
  Chosen<V> chosen(input, chunk, values, places);
  std::size_t i = 0;
  for (; i + kGroup <= input.count; i += kGroup) {
    const std::byte* const src = input.src + kSourceBytes * i;
    std::byte* const residual = input.residual + kResidualBytes * i;
    prefetch_group<kSourceBytes>(src);
    prefetch_group<kResidualBytes>(residual);
    collect_group<V, kType, kResidual>(src, residual, decay, above, ~std::uint64_t{0}, i, chunk, chosen);
  }
  if (const std::size_t rest = input.count - i; rest > 0) {
    alignas(64) std::byte src[kGroup * 4] = {};
    alignas(64) std::byte residual[kGroup * 4] = {};
    __builtin_memcpy(src, input.src + kSourceBytes * i, kSourceBytes * rest);
    if constexpr (kResidualBytes > 0) {
      __builtin_memcpy(residual, input.residual + kResidualBytes * i, kResidualBytes * rest);
    }
    const std::uint64_t there = (std::uint64_t{1} << rest) - 1;
    collect_group<V, kType, kResidual>(src, residual, decay, above, there, i, chunk, chosen);
    if constexpr (kResidualBytes > 0) {
      __builtin_memcpy(input.residual + kResidualBytes * i, residual, kResidualBytes * rest);
    }
  }
  return chosen.end();
}

template <typename V>
std::size_t count_above(const float* values, std::size_t count, std::int32_t magnitude) {
  const auto limit = V::set_int(magnitude);
  std::size_t above = 0;
  std::size_t i = 0;
  const auto add = [&](const float* from, std::uint32_t there) {
    const std::uint32_t is_above = V::bits_of(V::greater(magnitude_bits<V>(V::load(from)), limit));
    above += count_ones(is_above & there);
  };
  for (; i + V::kLanes <= count; i += V::kLanes) add(values + i, ~0u);
  if (const std::size_t rest = count - i; rest > 0) {
    float last[V::kLanes] = {};
    __builtin_memcpy(last, values + i, rest * sizeof(float));
    add(last, (1u << rest) - 1);
  }
  return above;
}

inline std::byte* write_gap(std::uint32_t rest, std::byte* to) {
  for (; rest >= 255; rest -= 255) *to++ = std::byte{255};
  *to++ = static_cast<std::byte>(rest);
  return to;
}

// A vector at a time where none takes more than a byte.
template <typename V>
std::size_t write_gaps(const std::uint32_t* places, std::size_t count, std::uint32_t previous,
                       std::byte* gaps) {
  if (count == 0) return 0;
  const auto place = [&](std::size_t i) {
    return V::load_ints(reinterpret_cast<const std::byte*>(places + i));
  };
  std::byte* to = write_gap(places[0] - previous - 1, gaps);
  std::size_t i = 1;
  for (; i + V::kLanes <= count; i += V::kLanes) {
    const auto gap = V::subtract(place(i), place(i - 1));  // 1 to 255 fit
    if (!V::any(V::greater(V::template shift_right<8>(gap), V::set_int(0)))) {
      V::store_bytes(to, V::subtract(gap, V::set_int(1)));
      to += V::kLanes;
    } else {
      for (std::size_t j = i; j < i + V::kLanes; ++j) to = write_gap(places[j] - places[j - 1] - 1, to);
    }
  }
  for (; i < count; ++i) to = write_gap(places[i] - places[i - 1] - 1, to);
  return static_cast<std::size_t>(to - gaps);
}

template <typename V, core::DType... kTypes>
constexpr SelectKernels make_select_kernels() {
  return {{{collect<V, kTypes, Residual::None>, collect<V, kTypes, Residual::Float32>,
            collect<V, kTypes, Residual::BFloat16>}...},
          count_above<V>,
          write_gaps<V>};
}
template <typename V>
constexpr SelectKernels kSelectLoops =
    make_select_kernels<V, core::DType::Float32, core::DType::Float16, core::DType::BFloat16>();

}  // namespace
}  // namespace geocomm::codec
