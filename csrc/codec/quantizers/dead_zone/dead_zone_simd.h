// The loops of DeadZoneKernels on vectors V (vector_avx2.h, vector_avx512.h). All is local to the file that
// includes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/quantizers/dead_zone/dead_zone_kernels.h"
#include "codec/simd/prefetch.h"
#include "codec/simd/vector_elements.h"

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
    __builtin_memcpy(bitmap + i / 8, &bits, sizeof(bits));
    end += V::compact(bits, bytes, end);
  }
  return static_cast<std::size_t>(end - codes);
}

template <typename V, Sink kSink>
std::size_t dequantize(const std::byte* bitmap, const std::byte* codes, std::size_t count, float step,
                       std::byte* dst) {
  const auto steps = V::set(step);
  const std::byte* next = codes;
  for (std::size_t i = 0; i < count; i += V::kBytes) {
    typename V::ByteMask bits;
    __builtin_memcpy(&bits, bitmap + i / 8, sizeof(bits));
    typename V::Ints code[4];
    next += V::expand(bits, next, code);
    for (std::size_t part = 0; part < 4; ++part) {
      put_vector<V, kSink, true>(dst, i + part * V::kLanes, V::to_floats(code[part]) * steps);
    }
  }
  return static_cast<std::size_t>(next - codes);
}

template <typename V>
constexpr DeadZoneKernels kDeadZoneLoops{
    {quantize<V, Residual::None>, quantize<V, Residual::Float32>, quantize<V, Residual::BFloat16>},
    {dequantize<V, Sink::Float32>, dequantize<V, Sink::Float16>, dequantize<V, Sink::BFloat16>,
     dequantize<V, Sink::AddToFloat32>, dequantize<V, Sink::StreamedFloat32>}};

}  // namespace
}  // namespace geocomm::codec
