#include <array>
#include <bit>
#include <cstring>

#include "codec/kernels/loco_kernels.h"
#include "codec/kernels/partial_sums.h"
#include "core/cpu.h"
#include "core/half.h"

namespace geocomm::codec {
namespace {

constexpr std::size_t kPerByte = 4;

float magnitude_of(float value) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & ~core::kFloatSignBit);
}

std::uint32_t code_at(const std::byte* codes, std::size_t index) {
  return static_cast<std::uint32_t>(codes[index / kPerByte]) >> 2 * (index % kPerByte) & 3;
}

LocoParts quantize(const float* values, std::size_t count, const LocoRule& rule, std::byte* codes) {
  LocoParts parts;
  std::array<float, kLocoMaxK> low;
  std::array<float, kLocoMaxK> high;
  std::memset(codes, 0, loco_code_bytes(count));
  for (std::size_t i = 0; i < count; ++i) {
    const float scaled = magnitude_of(values[i]) * rule.down;
    const bool is_high = scaled * rule.sum >= rule.squares;
    low[i] = is_high ? 0.0f : scaled;
    high[i] = is_high ? scaled : 0.0f;
    parts.high_count += static_cast<std::size_t>(is_high);
    const std::uint32_t negative = std::bit_cast<std::uint32_t>(values[i]) >> 31;
    const std::uint32_t code = static_cast<std::uint32_t>(is_high) | negative << 1;
    codes[i / kPerByte] |= static_cast<std::byte>(code << 2 * (i % kPerByte));
  }
  parts.low = sum_terms(count, [&](std::size_t i) { return low[i]; });
  parts.high = sum_terms(count, [&](std::size_t i) { return high[i]; });
  return parts;
}

// By code.
std::array<float, 4> table_of(const LocoLevels& levels) {
  const float low = core::bfloat16_to_float(levels.low);
  const float high = core::bfloat16_to_float(levels.high);
  return {low, high, -low, -high};
}

void subtract(const float* values, const std::byte* codes, std::size_t count, const LocoLevels& levels,
              float* lost) {
  const auto table = table_of(levels);
  for (std::size_t i = 0; i < count; ++i) lost[i] = values[i] - table[code_at(codes, i)];
}

void decode(const std::byte* codes, std::size_t count, const LocoLevels& levels, float* values) {
  const auto table = table_of(levels);
  for (std::size_t i = 0; i < count; ++i) values[i] = table[code_at(codes, i)];
}

void pack_places(const std::uint32_t* places, std::size_t count, std::uint32_t first, std::byte* packed) {
  for (std::size_t i = 0; i < count; i += 2) {
    const std::uint32_t even = places[i] - first;
    const std::uint32_t odd = i + 1 < count ? places[i + 1] - first : 0;
    *packed++ = static_cast<std::byte>(even);
    *packed++ = static_cast<std::byte>(even >> 8 | odd << 4);
    if (i + 1 < count) *packed++ = static_cast<std::byte>(odd >> 4);
  }
}

bool unpack_places(const std::byte* packed, std::size_t count, std::size_t length, std::uint32_t* places) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(packed);
  bool ascend = true;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t* at = bytes + 3 * i / 2;
    const std::uint32_t pair = at[0] | std::uint32_t{at[1]} << 8;
    places[i] = (i % 2 == 0 ? pair : pair >> 4) & 0xFFF;
    ascend = ascend && (i == 0 || places[i] > places[i - 1]);
  }
  return ascend && (count == 0 || places[count - 1] < length);
}

constexpr LocoKernels kTable = {quantize, subtract, decode, pack_places, unpack_places};

}  // namespace

const LocoKernels* loco_kernels_scalar() {
  return &kTable;
}

const LocoKernels& loco_kernels(std::size_t count) {
  const LocoKernels* best = nullptr;
  if (count % kLocoStep == 0) {
    const core::CpuLevel level = core::cpu_level();
    if (level >= core::CpuLevel::Avx512) best = loco_kernels_avx512();
    if (best == nullptr && level >= core::CpuLevel::Avx2) best = loco_kernels_avx2();
  }
  return best != nullptr ? *best : kTable;
}

}  // namespace geocomm::codec
