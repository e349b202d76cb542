// The storage formats of floats, one element at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/half.h"

namespace geocomm::collective {
namespace {

struct Float32 {
  using Storage = float;
  static float load(float stored) { return stored; }
  static float store(float value) { return value; }
};

struct Float16 {
  using Storage = std::uint16_t;
  static float load(std::uint16_t stored) { return core::half_to_float(stored); }
  static std::uint16_t store(float value) { return core::float_to_half(value); }
};

struct BFloat16 {
  using Storage = std::uint16_t;
  static float load(std::uint16_t stored) { return core::bfloat16_to_float(stored); }
  static std::uint16_t store(float value) { return core::float_to_bfloat16(value); }
};

template <typename Format>
float load_at(const std::byte* base, std::size_t index) {
  typename Format::Storage stored;
  std::memcpy(&stored, base + index * sizeof(stored), sizeof(stored));
  return Format::load(stored);
}

template <typename Format>
void store_at(std::byte* base, std::size_t index, float value) {
  const typename Format::Storage stored = Format::store(value);
  std::memcpy(base + index * sizeof(stored), &stored, sizeof(stored));
}

}  // namespace
}  // namespace geocomm::collective
