// The loops of DeadZoneKernels on vectors V (codec/simd). All is local to the file that
// includes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/frames/vector_elements.h"
#include "codec/quantizers/dead_zone/dead_zone_kernels.h"
#include "codec/simd/prefetch.h"

namespace geocomm::codec {
namespace {

template <typename V, Residual kResidual>
std::size_t quantize(const std::byte* floats, std::size_t count, const DeadZoneStep& step,
                     std::byte* residual, std::byte* bitmap, std::byte* codes) {
  const auto steps = V::set(step.step);
  const auto inverse = V::set(step.inverse);
  const auto sign = V::set_int(INT32_MIN);
  const auto dead = V::bits(V::set(0.1f));
  std::byte* end = codes;
  for (std::size_t i = 0; i < count; i += V::kBytes) {
    prefetch_ahead<4 * V::kBytes>(floats + 4 * i);
    typename V::Ints code[4];
    for (std::size_t part = 0; part < 4; ++part) {
      const std::size_t at = i + part * V::kLanes;
      const auto value = V::load(floats + 4 * at);
      const auto y = value * inverse;
      code[part] = V::round(y - V::floats((V::bits(y) & sign) | dead));
      store_residuals<V, kResidual, true>(residual, at, value, V::to_floats(code[part]) * steps);
    }
    const auto bytes = V::to_bytes(code[0], code[1], code[2], code[3]);
    const auto bits = V::nonzero_bytes(bytes);
    store_mask<V>(bitmap, i, bits);
    V::compact(bits, bytes, end);
  }
  return static_cast<std::size_t>(end - codes);
}

template <typename V, Sink kSink>
std::size_t dequantize(const std::byte* bitmap, const std::byte* codes, std::size_t count, float step,
                       std::byte* dst) {
  const auto steps = V::set(step);
  const std::byte* next = codes;
  for (std::size_t i = 0; i < count; i += V::kBytes) {
    typename V::Ints code[4];
    V::expand(load_mask<V>(bitmap, i), next, code);
    for (std::size_t part = 0; part < 4; ++part) {
      put_vector<V, kSink, true>(dst, i + part * V::kLanes, V::to_floats(code[part]) * steps);
    }
  }
  return static_cast<std::size_t>(next - codes);
}

constexpr std::size_t whole_units(std::size_t count) {
  return (count + kDeadZoneUnit - 1) / kDeadZoneUnit * kDeadZoneUnit;
}

// What is closed up never passes what is still to be read.
template <typename V>
std::size_t split(std::byte* codes, std::size_t count, std::byte* signs, std::byte* bits) {
  std::byte* end = codes;
  for (std::size_t i = 0; i < whole_units(count); i += V::kBytes) {
    const auto code = V::load_ints(codes + i);
    store_mask<V>(signs, i, V::negative_bytes(code));
    const auto magnitude = V::abs_bytes(code);
    const auto larger = V::greater_bytes(magnitude, V::set_byte(1));
    store_mask<V>(bits, i, larger);
    V::compact(larger, magnitude, end);
  }
  return static_cast<std::size_t>(end - codes);
}

template <typename V>
std::size_t peel(std::byte* magnitudes, std::size_t count, unsigned least, std::byte* bits) {
  std::byte* end = magnitudes;
  for (std::size_t i = 0; i < whole_units(count); i += V::kBytes) {
    const auto magnitude = V::load_ints(magnitudes + i);
    const auto larger = V::greater_bytes(magnitude, V::set_byte(static_cast<char>(least)));
    store_mask<V>(bits, i, larger);
    V::compact(larger, magnitude, end);
  }
  return static_cast<std::size_t>(end - magnitudes);
}

template <typename V>
void fill(const std::byte* larger, const std::byte* bits, std::size_t count, unsigned least,
          std::byte* magnitudes) {
  const auto others = V::set_byte(static_cast<char>(least));
  for (std::size_t i = 0; i < whole_units(count); i += V::kBytes) {
    V::store_ints(magnitudes + i, V::expand_over(others, load_mask<V>(bits, i), larger));
  }
}

template <typename V>
void join(const std::byte* larger, const std::byte* signs, const std::byte* bits, std::size_t count,
          std::byte* codes) {
  const auto ones = V::set_byte(1);
  for (std::size_t i = 0; i < whole_units(count); i += V::kBytes) {
    const auto magnitude = V::expand_over(ones, load_mask<V>(bits, i), larger);
    V::store_ints(codes + i, V::negate_bytes(load_mask<V>(signs, i), magnitude));
  }
}

template <typename V>
constexpr DeadZoneKernels kDeadZoneLoops{
    {quantize<V, Residual::None>, quantize<V, Residual::Float32>, quantize<V, Residual::BFloat16>},
    {dequantize<V, Sink::Float32>, dequantize<V, Sink::Float16>, dequantize<V, Sink::BFloat16>,
     dequantize<V, Sink::AddToFloat32>, dequantize<V, Sink::StreamedFloat32>},
    split<V>,
    peel<V>,
    fill<V>,
    join<V>};

}  // namespace
}  // namespace geocomm::codec
