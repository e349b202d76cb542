// The loops of CastKernels on vectors V (codec/simd). All is local to the file that
// includes it. Counts are multiples of kCastStep.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/frames/vector_elements.h"
#include "codec/quantizers/cast/cast_kernels.h"
#include "codec/simd/vector_words.h"

namespace geocomm::codec {
namespace {

// Where a finite value is `limit` or more.
template <typename V>
typename V::Mask overflows(typename V::Floats value, std::int32_t limit) {
  const auto magnitude = magnitude_bits<V>(value);
  return V::greater(magnitude, V::set_int(limit - 1)) & V::greater(V::set_int(kInfBits), magnitude);
}

template <typename V, core::DType kType, Residual kResidual>
bool all_fit(const std::byte* src, const std::byte* residual, float decay, std::size_t count,
             std::int32_t first_too_large) {
  const auto factor = V::set(decay);
  typename V::Mask bad{};
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    const auto value = load_values<V, kType, kResidual>(src, residual, factor, i);
    bad = bad | overflows<V>(value, first_too_large);
  }
  return !V::any(bad);
}

template <typename V, core::DType kFormat, core::DType kType, Residual kResidual>
bool encode(const std::byte* src, std::byte* residual, float decay, std::size_t count, std::byte* words) {
  const auto factor = V::set(decay);
  typename V::Mask bad{};
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    const auto value = load_values<V, kType, kResidual>(src, residual, factor, i);
    bad = bad | overflows<V>(value, first_too_large(kFormat));
    if constexpr (kFormat == core::DType::Float16) {
      V::store_half(words + 2 * i, value);
      if constexpr (kResidual != Residual::None) {
        store_residuals<V, kResidual, false>(residual, i, value, V::rounded_to_half(value));
      }
    } else {
      const auto word = bfloat16_words<V, false>(value);
      V::store_words(words + 2 * i, word);
      const auto decoded = V::floats(V::template shift_left<16>(word));
      store_residuals<V, kResidual, false>(residual, i, value, decoded);
    }
  }
  return !V::any(bad);
}

template <typename V, core::DType kFormat, Sink kSink>
void decode(const std::byte* words, std::size_t count, std::byte* dst) {
  constexpr bool kIsFloat = kSink == Sink::Float32 || kSink == Sink::StreamedFloat32;
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    if constexpr (kFormat == core::DType::Float16 && kIsFloat) {
      put_vector<V, kSink, false>(dst, i, load_half_exactly<V>(words + 2 * i));
    } else {
      put_vector<V, kSink, false>(dst, i, load_vector<V, kFormat>(words, i));
    }
  }
}

template <typename V>
struct CastLoops {
  template <core::DType kType, Residual kResidual>
  static constexpr CastKernels::AllFit kAllFit = all_fit<V, kType, kResidual>;
  template <core::DType kFormat, core::DType kType, Residual kResidual>
  static constexpr CastKernels::Encode kEncode = encode<V, kFormat, kType, kResidual>;
  template <core::DType kFormat, Sink kSink>
  static constexpr CastKernels::Decode kDecode = decode<V, kFormat, kSink>;
  static constexpr CastKernels::Split kSplit = split_words<V>;
  static constexpr CastKernels::Join kJoin = join_words<V>;
};

}  // namespace
}  // namespace geocomm::codec
