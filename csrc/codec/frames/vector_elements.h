// Elements and residuals of any dtype to vectors of floats and back: elements.h for the vectors V of
// codec/simd, with the same bits. All is local to the file that includes it.
//
// kFinite: neither Inf nor NaN comes in, which is faster.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/frames/elements.h"
#include "core/dtype.h"

namespace geocomm::codec {
namespace {

inline constexpr std::int32_t kMagnitudeMask = 0x7FFFFFFF;
inline constexpr std::int32_t kInfBits = 0x7F800000;

template <typename V>
typename V::Ints magnitude_bits(typename V::Floats a) {
  return V::bits(a) & V::set_int(kMagnitudeMask);
}

// A vector's bits of a bitmap; `index` is that of the first.
template <typename V>
void store_mask(std::byte* bitmap, std::size_t index, typename V::ByteMask bits) {
  __builtin_memcpy(bitmap + index / 8, &bits, sizeof(bits));
}
template <typename V>
typename V::ByteMask load_mask(const std::byte* bitmap, std::size_t index) {
  typename V::ByteMask bits;
  __builtin_memcpy(&bits, bitmap + index / 8, sizeof(bits));
  return bits;
}

template <typename V, core::DType kType>
typename V::Floats load_vector(const std::byte* base, std::size_t index) {
  if constexpr (kType == core::DType::Float32) {
    return V::load(base + 4 * index);
  } else if constexpr (kType == core::DType::Float16) {
    return V::load_half(base + 2 * index);
  } else {
    return V::floats(V::template shift_left<16>(V::load_words(base + 2 * index)));
  }
}

// As load_vector(), but NaN keeps all of its bits.
template <typename V>
typename V::Floats load_half_exactly(const std::byte* from) {
  const auto widened = V::load_half(from);
  const auto is_nan = V::is_nan(widened);
  if (!V::any(is_nan)) return widened;
  const auto word = V::load_words(from);
  const auto sign = V::template shift_left<16>(word & V::set_int(0x8000));
  const auto payload = V::template shift_left<13>(word & V::set_int(0x03FF));
  return V::floats(V::select(is_nan, sign | payload | V::set_int(kInfBits), V::bits(widened)));
}

template <typename V, core::DType kType, Residual kResidual>
typename V::Floats load_values(const std::byte* src, const std::byte* residual, typename V::Floats decay,
                               std::size_t index) {
  const auto input = load_vector<V, kType>(src, index);
  if constexpr (kResidual == Residual::Float32) {
    return V::add_residual(input, decay, load_vector<V, core::DType::Float32>(residual, index));
  } else if constexpr (kResidual == Residual::BFloat16) {
    return V::add_residual(input, decay, load_vector<V, core::DType::BFloat16>(residual, index));
  } else {
    return input;
  }
}

// Finite values become at most `limit`, a bit pattern; Inf and NaN stay.
template <typename V, bool kFinite>
typename V::Floats saturated(typename V::Floats a, std::int32_t limit) {
  const auto sign = V::bits(a) & V::set_int(INT32_MIN);
  const auto magnitude = magnitude_bits<V>(a);
  auto limited = V::min(magnitude, V::set_int(limit));
  if constexpr (!kFinite) {
    limited = V::select(V::greater(magnitude, V::set_int(kInfBits - 1)), magnitude, limited);
  }
  return V::floats(limited | sign);
}

// Rounded to nearest even.
template <typename V, bool kFinite>
typename V::Ints bfloat16_words(typename V::Floats a) {
  const auto bits = V::bits(a);
  const auto upper = V::template shift_right<16>(bits);
  const auto odd = upper & V::set_int(1);
  const auto rounded = V::template shift_right<16>(V::add(V::add(bits, V::set_int(0x7FFF)), odd));
  if constexpr (kFinite) return rounded;
  return V::select(V::is_nan(a), upper | V::set_int(0x40), rounded);
}

// Without saturation.
template <typename V, core::DType kFormat, bool kFinite>
void store_narrowed(std::byte* base, std::size_t index, typename V::Floats a) {
  if constexpr (kFormat == core::DType::Float32) {
    V::store(base + 4 * index, a);
  } else if constexpr (kFormat == core::DType::Float16) {
    V::store_half(base + 2 * index, a);
  } else {
    V::store_words(base + 2 * index, bfloat16_words<V, kFinite>(a));
  }
}

template <typename V, core::DType kFormat, bool kFinite>
void store_saturated(std::byte* base, std::size_t index, typename V::Floats a) {
  constexpr std::int32_t kLargest = kFormat == core::DType::Float16 ? 0x477FE000 : 0x7F7F0000;
  store_narrowed<V, kFormat, kFinite>(base, index, saturated<V, kFinite>(a, kLargest));
}

template <typename V, Residual kResidual, bool kFinite>
void store_residuals(std::byte* residual, std::size_t index, typename V::Floats value,
                     typename V::Floats decoded) {
  if constexpr (kResidual != Residual::None) {
    auto lost = value - decoded;
    if constexpr (!kFinite) {
      const auto is_finite = V::greater(V::set_int(kInfBits), magnitude_bits<V>(value));
      lost = V::floats(V::where(is_finite, V::bits(lost)));
    }
    if constexpr (kResidual == Residual::Float32) {
      V::store(residual + 4 * index, lost);
    } else {
      store_saturated<V, core::DType::BFloat16, kFinite>(residual, index, lost);
    }
  }
}

template <typename V, Sink kSink, bool kFinite>
void put_vector(std::byte* base, std::size_t index, typename V::Floats a) {
  if constexpr (kSink == Sink::Float32) {
    V::store(base + 4 * index, a);
  } else if constexpr (kSink == Sink::StreamedFloat32) {
    V::stream(base + 4 * index, a);
  } else if constexpr (kSink == Sink::AddToFloat32) {
    V::store(base + 4 * index, V::load(base + 4 * index) + a);
  } else if constexpr (kSink == Sink::Float16) {
    store_saturated<V, core::DType::Float16, kFinite>(base, index, a);
  } else {
    store_saturated<V, core::DType::BFloat16, kFinite>(base, index, a);
  }
}

}  // namespace
}  // namespace geocomm::codec
