#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "codec/quantizers/loco/loco_kernels.h"
#include "codec/simd/partial_sums.h"
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

void pack_places(const std::uint32_t* places, const LocoPlaces& shape, std::uint32_t first,
                 std::byte* packed) {
  const unsigned low_bits = shape.low_bits();
  std::memset(packed, 0, shape.bytes());
  // From any bit of a byte.
  const auto put = [&](std::size_t at, std::uint32_t bits) {
    std::byte* to = packed + at / 8;
    for (bits <<= at % 8; bits != 0; bits >>= 8) *to++ |= static_cast<std::byte>(bits);
  };
  for (std::size_t i = 0; i < shape.count; ++i) {
    const std::uint32_t place = places[i] - first;
    put(i * low_bits, place & ((1u << low_bits) - 1));
    put(shape.count * low_bits + (place >> low_bits) + i, 1);
  }
}

// False: there are not `count` ones, or some behind the last bit.
bool unpack_highs(const std::byte* packed, const LocoPlaces& shape, std::uint32_t* highs) {
  const std::size_t first = shape.count * shape.low_bits();
  std::size_t found = 0;
  for (std::size_t byte = first / 8; byte < shape.bytes(); byte += sizeof(std::uint64_t)) {
    std::uint64_t ones = 0;
    std::memcpy(&ones, packed + byte, std::min(sizeof(ones), shape.bytes() - byte));
    if (byte == first / 8) ones &= ~std::uint64_t{0} << first % 8;
    for (; ones != 0; ones &= ones - 1) {
      const std::size_t one = 8 * byte + static_cast<unsigned>(std::countr_zero(ones)) - first;
      if (found == shape.count || one >= shape.high_bits()) return false;
      highs[found] = static_cast<std::uint32_t>(one - found);
      ++found;
    }
  }
  return found == shape.count;
}

bool unpack_places(const std::byte* packed, const LocoPlaces& shape, std::uint32_t* places) {
  if (!unpack_highs(packed, shape, places)) return false;
  const unsigned low_bits = shape.low_bits();
  std::uint32_t ahead = 0;  // read, but not taken
  unsigned bits = 0;
  bool ascend = true;
  for (std::size_t i = 0; i < shape.count; ++i) {
    for (; bits < low_bits; bits += 8) ahead |= static_cast<std::uint32_t>(*packed++) << bits;
    places[i] = places[i] << low_bits | (ahead & ((1u << low_bits) - 1));
    ahead >>= low_bits;
    bits -= low_bits;
    ascend = ascend && (i == 0 || places[i] > places[i - 1]);
  }
  return ascend && places[shape.count - 1] < shape.length;
}

constexpr LocoKernels kLoops{quantize, subtract, decode, pack_places, unpack_places};

}  // namespace

constinit const LocoKernels LocoKernels::kScalar = kLoops;

}  // namespace geocomm::codec
