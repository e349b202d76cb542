#include "collective/feedback.h"

#include <algorithm>
#include <array>

#include "codec/elements.h"

namespace geocomm::collective {

using core::DType;

namespace {

// Sum of value(i)², i < count: in double, so that no square overflows, and in lanes, so that the loop
// vectorizes.
template <typename Value>
double sum_of_squares(std::size_t count, const Value& value) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double one = value(i + lane);
      sums[lane] += one * one;
    }
  }
  for (std::size_t i = whole; i < count; ++i) {
    const double one = value(i);
    sums[i - whole] += one * one;
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

template <typename Bits>
bool no_exponent_is_full(std::span<const std::byte> elements, Bits exponent) {
  constexpr std::size_t kTile = 4096;  // elements between two looks at the verdict
  const std::size_t count = elements.size() / sizeof(Bits);
  for (std::size_t begin = 0; begin < count; begin += kTile) {
    const std::size_t end = std::min(count, begin + kTile);
    Bits found = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const Bits bits = codec::load_unaligned<Bits>(elements.data() + i * sizeof(Bits));
      found = static_cast<Bits>(found | ((bits & exponent) == exponent ? 1 : 0));
    }
    if (found != 0) return false;
  }
  return true;
}

}  // namespace

double square_of_input(DType dtype, std::span<const std::byte> elements, std::span<const float> residual,
                       float decay) {
  return codec::with_compressible(dtype, [&]<DType kType>() {
    return sum_of_squares(residual.size(), [&](std::size_t i) {
      return codec::load_element<kType>(elements.data(), i) + decay * residual[i];
    });
  });
}

double square_of(std::span<const float> values) {
  return sum_of_squares(values.size(), [&](std::size_t i) { return values[i]; });
}

bool all_finite(DType dtype, std::span<const std::byte> elements) {
  switch (dtype) {
    case DType::Float16:
      return no_exponent_is_full<std::uint16_t>(elements, 0x7C00);
    case DType::BFloat16:
      return no_exponent_is_full<std::uint16_t>(elements, 0x7F80);
    default:
      return no_exponent_is_full<std::uint32_t>(elements, 0x7F800000u);
  }
}

}  // namespace geocomm::collective
