// Element types that geocomm computes with. Data that is only moved travels as UInt8.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace geocomm::core {

// The values stand on the wire (docs/spec/codecs.md): never renumber.
enum class DType : std::uint8_t {
  Float32 = 0,
  Float64 = 1,
  Float16 = 2,
  BFloat16 = 3,
  Int8 = 4,
  UInt8 = 5,
  Int16 = 6,
  Int32 = 7,
  Int64 = 8,
  Bool = 9,
};
inline constexpr std::uint8_t kDTypeCount = 10;

constexpr bool is_valid_dtype(std::uint8_t value) {
  return value < kDTypeCount;
}

// Bytes per element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::Float64:
    case DType::Int64:
      return 8;
    case DType::Float32:
    case DType::Int32:
      return 4;
    case DType::Float16:
    case DType::BFloat16:
    case DType::Int16:
      return 2;
    case DType::Int8:
    case DType::UInt8:
    case DType::Bool:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::Float32 || dtype == DType::Float64 || dtype == DType::Float16 ||
         dtype == DType::BFloat16;
}

// The types that lossy codecs accept: Float32, Float16, BFloat16.
constexpr bool is_compressible(DType dtype) {
  return is_floating(dtype) && dtype != DType::Float64;
}

inline constexpr std::array<std::string_view, kDTypeCount> kDTypeNames = {
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool"};

constexpr std::string_view to_string(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kDTypeCount ? kDTypeNames[index] : "unknown";
}

}  // namespace geocomm::core
