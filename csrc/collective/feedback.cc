#include "collective/feedback.h"

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

double square_of(DType dtype, std::span<const std::byte> elements) {
  return codec::with_compressible(dtype, [&]<DType kType>() {
    return sum_of_squares(elements.size() / core::size_of(dtype),
                          [&](std::size_t i) { return codec::load_element<kType>(elements.data(), i); });
  });
}

}  // namespace geocomm::collective
