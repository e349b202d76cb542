#include "collective/sums/feedback.h"

#include <array>

#include "codec/simd/partial_sums.h"
#include "collective/sums/feedback_kernels.h"
#include "core/cpu.h"
#include "core/float_rules.h"

namespace geocomm::collective {

using core::DType;

namespace {

using Squares = std::array<double, codec::kSquareSums>;

// core::in_steps() of the tables for a dtype.
template <typename Run>
void in_steps(DType dtype, std::size_t count, const Run& run) {
  const core::FloatRules rules;
  core::in_steps<FeedbackFamily>(count, codec::kSquareSums,
                                 [&](const FeedbackFamily& family, std::size_t first, std::size_t part) {
                                   run(family.formats[codec::compressible_index(dtype)], first, part);
                                 });
}

double total(Squares& sums) {
  const core::FloatRules rules;
  return codec::fold_sums(sums.data(), sums.size());
}

}  // namespace

double enter_scales(DType dtype, std::span<std::byte> elements, const FeedbackSpans& feedback, float decay) {
  const std::size_t size = core::size_of(dtype);
  const float* const residual = feedback.residual.data();
  const float* const scale = feedback.scale.data();
  float* const next = feedback.next.data();
  Squares sums{};
  in_steps(dtype, feedback.residual.size(),
           [&](const FeedbackKernels& kernels, std::size_t first, std::size_t count) {
             std::byte* const from = elements.data() + first * size;
             if (feedback.scale.empty()) {
               kernels.enter(from, residual + first, decay, next + first, count, sums.data());
             } else {
               kernels.enter_scaled(from, residual + first, scale + first, decay, next + first, count,
                                    sums.data());
             }
           });
  return total(sums);
}

double enter_scales(std::span<const std::byte> elements, const FeedbackSpans& feedback, float decay) {
  Squares sums{};
  in_steps(DType::Float32, feedback.residual.size(),
           [&](const FeedbackKernels& kernels, std::size_t first, std::size_t count) {
             const float* residual = feedback.residual.data() + first;
             float* const next = feedback.next.data() + first;
             if (!feedback.scale.empty()) {
               kernels.divide(reinterpret_cast<const std::byte*>(residual), feedback.scale.data() + first,
                              reinterpret_cast<std::byte*>(next), count);
               residual = next;
             }
             kernels.enter(elements.data() + first * sizeof(float), residual, decay, next, count,
                           sums.data());
           });
  return total(sums);
}

void divide_by_scale(DType dtype, std::span<std::byte> elements, std::span<const float> scale) {
  in_steps(dtype, scale.size(), [&](const FeedbackKernels& kernels, std::size_t first, std::size_t count) {
    std::byte* const from = elements.data() + first * core::size_of(dtype);
    kernels.divide(from, scale.data() + first, from, count);
  });
}

ScaledSquares leave_scales(DType dtype, std::span<std::byte> elements, int divisor,
                           std::span<const float> scale) {
  Squares scaled{};
  Squares plain{};
  in_steps(dtype, scale.size(), [&](const FeedbackKernels& kernels, std::size_t first, std::size_t count) {
    kernels.leave(elements.data() + first * core::size_of(dtype), static_cast<float>(divisor),
                  scale.data() + first, count, scaled.data(), plain.data());
  });
  return {total(scaled), total(plain)};
}

double square_of(DType dtype, std::span<const std::byte> elements) {
  const std::size_t size = core::size_of(dtype);
  Squares sums{};
  in_steps(dtype, elements.size() / size,
           [&](const FeedbackKernels& kernels, std::size_t first, std::size_t count) {
             kernels.square(elements.data() + first * size, count, sums.data());
           });
  return total(sums);
}

double square_of(std::span<const float> values) {
  return square_of(DType::Float32, std::as_bytes(values));
}

}  // namespace geocomm::collective
