// What error feedback does with a chunk: against plain arithmetic, and every CPU level against the scalar
// one.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "collective/sums/feedback.h"
#include "core/cpu.h"
#include "element_values.h"

namespace geocomm::collective {
namespace {

using core::DType;
using namespace testing;
using Bytes = std::vector<std::byte>;

constexpr float kDecay = 0.5f;
const std::vector<std::size_t> kLengths = {0, 1, 7, 15, 16, 17, 31, 32, 33, 4095, 4097, 9000};

// Elements, residual and scales, and all that becomes of them.
struct Case {
  Case(DType type, std::size_t elements)
      : dtype(type), data(random_elements(type, elements, elements)), residual(elements), scale(elements) {
    for (std::size_t i = 0; i < elements; ++i) {
      residual[i] = std::sin(static_cast<float>(i));
      scale[i] = std::exp2(static_cast<float>(i % 15) - 7) * (i % 4 == 3 ? 1.5f : 1.0f);
    }
  }
  void poison() {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (std::size_t i = 5; i < residual.size(); i += 23)
      set_value(dtype, data, i, i % 2 == 0 ? nan : INFINITY);
    for (std::size_t i = 3; i < residual.size(); i += 31)
      residual[i] = -std::numeric_limits<float>::denorm_min();
  }

  DType dtype;
  Bytes data;
  std::vector<float> residual;
  std::vector<float> scale;
};

struct Outcome {
  Bytes entered, divided, left;
  std::vector<float> next, result_next;
  std::vector<double> squares;
};

Outcome outcome_of(const Case& given) {
  const std::size_t elements = given.residual.size();
  Outcome out{given.data, given.data, given.data, std::vector<float>(elements), std::vector<float>(elements),
              {}};
  const FeedbackSpans scaled{given.residual, out.next, given.scale};
  out.squares.push_back(enter_scales(given.dtype, out.entered, scaled, kDecay));
  Bytes untouched = given.data;
  std::vector<float> copy(elements);
  out.squares.push_back(enter_scales(given.dtype, untouched, {given.residual, copy, {}}, kDecay));
  EXPECT_EQ(untouched, given.data);
  EXPECT_EQ(copy, given.residual);
  out.squares.push_back(enter_scales(std::as_bytes(std::span(given.scale)),
                                     {given.residual, out.result_next, given.scale}, kDecay));
  divide_by_scale(given.dtype, out.divided, given.scale);
  const ScaledSquares both = leave_scales(given.dtype, out.left, 3, given.scale);
  out.squares.push_back(both.scaled);
  out.squares.push_back(both.plain);
  out.squares.push_back(square_of(given.dtype, given.data));
  out.squares.push_back(square_of(given.residual));
  return out;
}

// An element as the dtype has it.
double rounded(DType dtype, double value) {
  Bytes one(core::size_of(dtype));
  set_value(dtype, one, 0, value);
  return value_at(dtype, one, 0);
}

class FeedbackLevels : public ::testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(core::force_cpu_level(core::detected_cpu_level()).is_ok()); }
};

TEST_F(FeedbackLevels, every_dtype_and_length_equals_plain_arithmetic) {
  for (const DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    for (const std::size_t elements : kLengths) {
      const Case given(dtype, elements);
      const Outcome out = outcome_of(given);
      std::vector<double> squares(out.squares.size());
      for (std::size_t i = 0; i < elements; ++i) {
        const double value = value_at(dtype, given.data, i);
        const float scale = given.scale[i];
        const float entered = static_cast<float>(value) / scale;
        ASSERT_EQ(value_at(dtype, out.entered, i), rounded(dtype, entered)) << i;
        ASSERT_EQ(value_at(dtype, out.divided, i), rounded(dtype, entered)) << i;
        ASSERT_EQ(out.next[i], given.residual[i] / scale) << i;
        ASSERT_EQ(out.result_next[i], out.next[i]) << i;
        const double mean = rounded(dtype, static_cast<float>(value) / 3.0f);
        ASSERT_EQ(value_at(dtype, out.left, i), rounded(dtype, static_cast<float>(mean) * scale)) << i;
        squares[0] += std::pow(rounded(dtype, entered) + kDecay * out.next[i], 2);
        squares[1] += std::pow(value + kDecay * given.residual[i], 2);
        squares[2] += std::pow(scale + kDecay * out.next[i], 2);
        squares[3] += mean * mean;
        squares[4] += std::pow(value_at(dtype, out.left, i), 2);
        squares[5] += value * value;
        squares[6] += std::pow(given.residual[i], 2);
      }
      for (std::size_t s = 0; s < squares.size(); ++s) {
        EXPECT_NEAR(out.squares[s], squares[s], 1e-6 * squares[s]) << s << " of " << elements;
      }
    }
  }
}

TEST_F(FeedbackLevels, every_level_has_the_bits_of_the_scalar_one) {
  for (const DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    for (const std::size_t elements : kLengths) {
      for (const bool poisoned : {false, true}) {
        Case given(dtype, elements);
        if (poisoned) given.poison();
        std::optional<Outcome> reference;
        for (const auto level : core::cpu_levels()) {
          ASSERT_TRUE(core::force_cpu_level(level).is_ok());
          const Outcome out = outcome_of(given);
          if (!reference) reference = out;
          EXPECT_EQ(out.entered, reference->entered);
          EXPECT_EQ(out.divided, reference->divided);
          EXPECT_EQ(out.left, reference->left);
          EXPECT_EQ(out.next, reference->next);  // nothing there is NaN
          EXPECT_EQ(out.result_next, out.next);
          for (std::size_t s = 0; s < out.squares.size(); ++s) {
            if (std::isnan(reference->squares[s])) {
              EXPECT_TRUE(std::isnan(out.squares[s])) << s;
            } else {
              EXPECT_EQ(out.squares[s], reference->squares[s]) << s;
            }
          }
        }
      }
    }
  }
}

TEST_F(FeedbackLevels, squares_are_finite_only_where_every_element_is) {
  for (const DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    for (const std::size_t elements : kLengths) {
      for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
        for (const std::size_t at : {std::size_t{0}, elements / 2, elements - 1}) {
          if (elements == 0) continue;
          Case given(dtype, elements);
          EXPECT_TRUE(std::isfinite(square_of(dtype, given.data)));
          set_value(dtype, given.data, at, bad);
          const Outcome out = outcome_of(given);
          for (const std::size_t s : {0, 1, 3, 4, 5}) EXPECT_FALSE(std::isfinite(out.squares[s])) << s;
        }
      }
    }
  }
}

}  // namespace
}  // namespace geocomm::collective
