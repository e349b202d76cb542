// A caller's float settings change no bit of a reduction, nor of what error feedback does with a chunk, nor
// of the scales of elements.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "../float_conditions.h"
#include "collective/outer/element_scales.h"
#include "collective/sums/feedback.h"
#include "collective/sums/reduction.h"
#include "core/cpu.h"

namespace geocomm::collective {
namespace {

using core::DType;
using ResultBytes = std::vector<std::byte>;

constexpr std::size_t kCount = 3001;

// Finite bit patterns of small exponents, subnormal ones among them.
ResultBytes small_patterns(DType dtype, std::uint32_t seed) {
  const std::size_t size = core::size_of(dtype);
  ResultBytes bytes(kCount * size);
  for (std::size_t i = 0; i < kCount; ++i) {
    std::uint64_t word = 0;
    for (int part = 0; part < 2; ++part) {
      seed = seed * 1664525u + 1013904223u;
      word = word << 32 | (seed ^ seed >> 15);
    }
    const std::uint64_t sign = word & (std::uint64_t{1} << (8 * size - 1));
    const int keep = dtype == DType::Float64   ? 54
                     : dtype == DType::Float32 ? 25
                     : dtype == DType::Float16 ? 12
                                               : 9;
    const std::uint64_t bits = sign | (word & ((std::uint64_t{1} << keep) - 1));
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

std::vector<float> small_floats(std::uint32_t seed) {
  const ResultBytes bytes = small_patterns(DType::Float32, seed);
  std::vector<float> values(kCount);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void append(ResultBytes& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// All results of one dtype, one after the other.
ResultBytes results_of(DType dtype, const FloatCondition& condition) {
  const ResultBytes a = small_patterns(dtype, 1);
  const ResultBytes b = small_patterns(dtype, 2);
  const std::byte* const sources[] = {a.data(), b.data()};
  std::vector<float> sums = small_floats(3);
  std::vector<float> residual = small_floats(4);
  std::vector<float> next(kCount);
  const std::vector<float> scale(kCount, 0x1.8p-2f);
  ResultBytes all;
  const UnderCondition under(condition);
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max}) {
    ResultBytes result(a.size());
    reduce_elements(dtype, op, sources, result.data(), kCount, 3);
    append(all, result);
  }
  if (!core::is_compressible(dtype)) return all;
  accumulate_elements(dtype, a.data(), sums, codec::Accumulate::Add);
  divide(sums, 3);
  ResultBytes stored(a.size());
  store_sums(dtype, sums, stored.data());
  append(all, std::as_bytes(std::span(sums)));
  append(all, stored);

  ResultBytes elements = a;
  std::vector<double> squares = {enter_scales(dtype, elements, {residual, next, scale}, 0.7f)};
  append(all, elements);
  append(all, std::as_bytes(std::span(next)));
  squares.push_back(enter_scales(std::as_bytes(std::span(sums)), {residual, next, scale}, 0.7f));
  append(all, std::as_bytes(std::span(next)));
  divide_by_scale(dtype, elements, scale);
  append(all, elements);
  const ScaledSquares left = leave_scales(dtype, elements, 3, scale);
  append(all, elements);
  squares.insert(squares.end(), {left.scaled, left.plain, square_of(dtype, a)});
  append(all, std::as_bytes(std::span(squares)));
  return all;
}

TEST(ReductionFloatRules, test_settings_of_the_caller_change_no_bit) {
  const core::CpuLevel before = core::cpu_level();
  for (const DType dtype : {DType::Float32, DType::Float16, DType::BFloat16, DType::Float64}) {
    ASSERT_TRUE(core::force_cpu_level(core::CpuLevel::Scalar).is_ok());
    const ResultBytes expected = results_of(dtype, float_conditions().front());
    for (const auto level : core::cpu_levels()) {
      ASSERT_TRUE(core::force_cpu_level(level).is_ok());
      for (const FloatCondition& condition : float_conditions()) {
        EXPECT_TRUE(results_of(dtype, condition) == expected)
            << core::to_string(dtype) << ", " << core::to_string(level) << ", " << condition.name;
      }
    }
  }
  ASSERT_TRUE(core::force_cpu_level(before).is_ok());
}

TEST(ReductionFloatRules, test_settings_of_the_caller_change_no_scale) {
  const auto values = small_floats(5);
  std::vector<float> expected;
  for (const FloatCondition& condition : float_conditions()) {
    std::vector<float> squares(kCount, 0x1.8p-127f);
    std::vector<float> scales(kCount);
    {
      const UnderCondition under(condition);
      learn_squares(values, 0.75f, 0.25f, squares);
      scales_from(squares, mean_exponent(values), scales);
    }
    squares.insert(squares.end(), scales.begin(), scales.end());
    if (expected.empty()) expected = squares;
    EXPECT_EQ(std::memcmp(squares.data(), expected.data(), squares.size() * sizeof(float)), 0)
        << condition.name;
  }
}

// x86-64 makes a negative NaN and arm64 a positive one: sites of both must hold the same bits.
TEST(ReductionFloatRules, test_invalid_operation_gives_the_same_nan_on_every_processor) {
  struct Format {
    DType dtype;
    std::uint64_t infinity;
    std::uint64_t nan;
  };
  const Format formats[] = {{DType::Float32, 0x7F800000, 0xFFC00000},
                            {DType::Float16, 0x7C00, 0xFE00},
                            {DType::BFloat16, 0x7F80, 0xFFC0},
                            {DType::Float64, 0x7FF0000000000000, 0xFFF8000000000000}};
  constexpr std::size_t kElements = 100;
  const core::CpuLevel before = core::cpu_level();
  for (const auto level : core::cpu_levels()) {
    ASSERT_TRUE(core::force_cpu_level(level).is_ok());
    for (const Format& format : formats) {
      const std::size_t size = core::size_of(format.dtype);
      const auto all_of = [&](std::uint64_t bits) {
        ResultBytes bytes(kElements * size);
        for (std::size_t i = 0; i < kElements; ++i) std::memcpy(bytes.data() + i * size, &bits, size);
        return bytes;
      };
      const std::uint64_t sign = std::uint64_t{1} << (8 * size - 1);
      const ResultBytes infinities = all_of(format.infinity);
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Product}) {
        const ResultBytes others = all_of(op == ReduceOp::Sum ? format.infinity | sign : 0);
        const std::byte* const sources[] = {infinities.data(), others.data()};
        ResultBytes result(infinities.size());
        reduce_elements(format.dtype, op, sources, result.data(), kElements, 1);
        EXPECT_TRUE(result == all_of(format.nan))
            << core::to_string(format.dtype) << ", " << core::to_string(level);
      }
    }
  }
  ASSERT_TRUE(core::force_cpu_level(before).is_ok());
}

}  // namespace
}  // namespace geocomm::collective
