// Vectors of any dtype for tests, and their values as double.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "core/half.h"

namespace geocomm::collective::testing {

using core::DType;

inline const std::vector<DType>& all_dtypes() {
  static const std::vector<DType> kAll = {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16,
                                          DType::Int8,    DType::UInt8,   DType::Int16,   DType::Int32,
                                          DType::Int64,   DType::Bool};
  return kAll;
}

template <typename T>
T read_as(const std::vector<std::byte>& bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

inline double value_at(DType dtype, const std::vector<std::byte>& bytes, std::size_t index) {
  switch (dtype) {
    case DType::Float32:
      return read_as<float>(bytes, index);
    case DType::Float64:
      return read_as<double>(bytes, index);
    case DType::Float16:
      return core::half_to_float(read_as<std::uint16_t>(bytes, index));
    case DType::BFloat16:
      return core::bfloat16_to_float(read_as<std::uint16_t>(bytes, index));
    case DType::Int8:
      return read_as<std::int8_t>(bytes, index);
    case DType::UInt8:
    case DType::Bool:
      return read_as<std::uint8_t>(bytes, index);
    case DType::Int16:
      return read_as<std::int16_t>(bytes, index);
    case DType::Int32:
      return read_as<std::int32_t>(bytes, index);
    case DType::Int64:
      return static_cast<double>(read_as<std::int64_t>(bytes, index));
  }
  return 0;
}

inline void set_value(DType dtype, std::vector<std::byte>& bytes, std::size_t index, double value) {
  const auto put = [&](auto stored) {
    std::memcpy(bytes.data() + index * sizeof(stored), &stored, sizeof(stored));
  };
  switch (dtype) {
    case DType::Float32:
      return put(static_cast<float>(value));
    case DType::Float64:
      return put(value);
    case DType::Float16:
      return put(core::float_to_half(static_cast<float>(value)));
    case DType::BFloat16:
      return put(core::float_to_bfloat16(static_cast<float>(value)));
    case DType::Int8:
      return put(static_cast<std::int8_t>(value));
    case DType::UInt8:
    case DType::Bool:
      return put(static_cast<std::uint8_t>(value));
    case DType::Int16:
      return put(static_cast<std::int16_t>(value));
    case DType::Int32:
      return put(static_cast<std::int32_t>(value));
    case DType::Int64:
      return put(static_cast<std::int64_t>(value));
  }
}

// Floats: normally distributed; integers: any bits, so that sums wrap; Bool: 0 and 1.
inline std::vector<std::byte> random_elements(DType dtype, std::size_t elements, std::uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + 17);
  std::vector<std::byte> bytes(elements * core::size_of(dtype));
  if (core::is_floating(dtype)) {
    std::normal_distribution<double> normal;
    for (std::size_t i = 0; i < elements; ++i) set_value(dtype, bytes, i, normal(random));
  } else {
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(dtype == DType::Bool ? random() & 1 : random());
  }
  return bytes;
}

}  // namespace geocomm::collective::testing
