// Elements and residuals in unaligned memory to floats and back, one at a time, for loops that vectorize.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/frames/codec.h"
#include "core/dtype.h"
#include "core/half.h"

namespace geocomm::codec {

// For tables: Float32, Float16, BFloat16.
inline constexpr std::size_t kCompressibles = 3;
constexpr std::size_t compressible_index(core::DType dtype) {
  return dtype == core::DType::Float16 ? 1 : dtype == core::DType::BFloat16 ? 2 : 0;
}

// Calls `run.template operator()<kValue>()` for each value: what fills a table.
template <auto... kValues, typename Run>
constexpr void for_each(Run&& run) {
  (run.template operator()<kValues>(), ...);
}
template <typename Run>
constexpr void for_each_compressible(Run&& run) {
  for_each<core::DType::Float32, core::DType::Float16, core::DType::BFloat16>(run);
}

// Calls `run.template operator()<kType>()` for the compressible dtype at hand.
template <typename Run>
decltype(auto) with_compressible(core::DType dtype, Run&& run) {
  switch (dtype) {
    case core::DType::Float16:
      return run.template operator()<core::DType::Float16>();
    case core::DType::BFloat16:
      return run.template operator()<core::DType::BFloat16>();
    default:
      return run.template operator()<core::DType::Float32>();
  }
}

template <typename T>
T load_unaligned(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// The 16-bit formats: bits to float and back, rounding to nearest even.
template <core::DType kType>
float widen(std::uint16_t bits) {
  return kType == core::DType::Float16 ? core::half_to_float(bits) : core::bfloat16_to_float(bits);
}
template <core::DType kType>
std::uint16_t narrow(float value) {
  return kType == core::DType::Float16 ? core::float_to_half(value) : core::float_to_bfloat16(value);
}
// A finite value beyond the range becomes the largest finite one.
template <core::DType kType>
std::uint16_t narrow_saturated(float value) {
  return kType == core::DType::Float16 ? core::float_to_half_saturated(value)
                                       : core::float_to_bfloat16_saturated(value);
}

template <core::DType kType>
float load_element(const std::byte* base, std::size_t index) {
  if constexpr (kType == core::DType::Float32) {
    return load_unaligned<float>(base + 4 * index);
  } else {
    return widen<kType>(load_unaligned<std::uint16_t>(base + 2 * index));
  }
}

// Saturates to a 16-bit type, unless a value beyond its range is to become Inf.
template <core::DType kType, bool kSaturates = true>
void store_element(std::byte* base, std::size_t index, float value) {
  if constexpr (kType == core::DType::Float32) {
    std::memcpy(base + 4 * index, &value, 4);
  } else {
    const std::uint16_t bits = kSaturates ? narrow_saturated<kType>(value) : narrow<kType>(value);
    std::memcpy(base + 2 * index, &bits, 2);
  }
}

// A value beyond the range becomes Inf.
template <core::DType kType>
void store_rounded(std::byte* base, std::size_t index, float value) {
  store_element<kType, /*kSaturates=*/false>(base, index, value);
}

// How error feedback lies in memory.
enum class Residual : std::uint8_t { None, Float32, BFloat16 };
inline constexpr std::size_t kResidualKinds = 3;

inline Residual residual_kind(const ErrorFeedback& feedback) {
  if (!feedback.is_on()) return Residual::None;
  return feedback.dtype == core::DType::BFloat16 ? Residual::BFloat16 : Residual::Float32;
}

template <typename Run>
constexpr void for_each_residual(Run&& run) {
  for_each<Residual::None, Residual::Float32, Residual::BFloat16>(run);
}

// Calls `run.template operator()<kResidual>()` for the residual at hand.
template <typename Run>
decltype(auto) with_residual(Residual residual, Run&& run) {
  switch (residual) {
    case Residual::Float32:
      return run.template operator()<Residual::Float32>();
    case Residual::BFloat16:
      return run.template operator()<Residual::BFloat16>();
    case Residual::None:
      break;
  }
  return run.template operator()<Residual::None>();
}

// Each operation rounded. Where both are NaN it is the input's: an addition may keep either, as the compiler
// likes.
inline float add_residual(float input, float decay, float residual) {
  if (input != input) return input + input;
  const float product = core::of_invalid(decay * residual, residual, residual);
  return core::of_invalid(input + product, input, product);
}

// v = input + decay * residual; without a residual the input.
template <core::DType kType, Residual kResidual>
float load_value(const std::byte* src, const std::byte* residual, float decay, std::size_t index) {
  const float input = load_element<kType>(src, index);
  if constexpr (kResidual == Residual::Float32) {
    return add_residual(input, decay, load_element<core::DType::Float32>(residual, index));
  } else if constexpr (kResidual == Residual::BFloat16) {
    return add_residual(input, decay, load_element<core::DType::BFloat16>(residual, index));
  } else {
    return input;
  }
}

// What error feedback keeps: 0 where there is no difference to speak of.
inline float residual_of(float value, float decoded) {
  const bool finite = core::is_finite_bits(std::bit_cast<std::uint32_t>(value));
  return std::bit_cast<float>(core::select_bits(finite, std::bit_cast<std::uint32_t>(value - decoded), 0));
}

// A BFloat16 residual saturates: it never becomes Inf.
template <Residual kResidual>
void store_residual(std::byte* residual, std::size_t index, float value, float decoded) {
  if constexpr (kResidual == Residual::Float32) {
    store_element<core::DType::Float32>(residual, index, residual_of(value, decoded));
  } else if constexpr (kResidual == Residual::BFloat16) {
    store_element<core::DType::BFloat16>(residual, index, residual_of(value, decoded));
  }
}

// Where decoded values go: stored as elements of a dtype, or added to floats. StreamedFloat32: floats that
// nobody reads soon go past the caches, to memory aligned to kStreamAlignment; whoever asks for it ends with
// end_streaming() (streaming.h). What has no streaming stores takes it for Float32.
enum class Sink : std::uint8_t { Float32, Float16, BFloat16, AddToFloat32, StreamedFloat32 };
inline constexpr std::size_t kSinks = 5;

template <typename Run>
constexpr void for_each_sink(Run&& run) {
  for_each<Sink::Float32, Sink::Float16, Sink::BFloat16, Sink::AddToFloat32, Sink::StreamedFloat32>(run);
}

constexpr Sink sink_of(core::DType dtype) {
  return dtype == core::DType::Float16    ? Sink::Float16
         : dtype == core::DType::BFloat16 ? Sink::BFloat16
                                          : Sink::Float32;
}
constexpr std::size_t element_bytes(Sink sink) {
  return sink == Sink::Float16 || sink == Sink::BFloat16 ? 2 : 4;
}

template <Sink kSink>
void put(std::byte* base, std::size_t index, float value) {
  if constexpr (kSink == Sink::AddToFloat32) {
    store_element<core::DType::Float32>(base, index, load_element<core::DType::Float32>(base, index) + value);
  } else if constexpr (kSink == Sink::Float16) {
    store_element<core::DType::Float16>(base, index, value);
  } else if constexpr (kSink == Sink::BFloat16) {
    store_element<core::DType::BFloat16>(base, index, value);
  } else {
    store_element<core::DType::Float32>(base, index, value);
  }
}

// Calls `run.template operator()<kSink>()` for the sink at hand.
template <typename Run>
decltype(auto) with_sink(Sink sink, Run&& run) {
  switch (sink) {
    case Sink::Float16:
      return run.template operator()<Sink::Float16>();
    case Sink::BFloat16:
      return run.template operator()<Sink::BFloat16>();
    case Sink::AddToFloat32:
      return run.template operator()<Sink::AddToFloat32>();
    case Sink::Float32:
    case Sink::StreamedFloat32:
      break;
  }
  return run.template operator()<Sink::Float32>();
}

}  // namespace geocomm::codec
