// How a reduction is carried out by those who add up in several steps: the ranks of a site, then the sites.
#pragma once

#include <optional>

#include "binding/torch/staging.h"
#include "binding/torch/torch_prelude.h"
#include "collective/run/exchange.h"

namespace geocomm::binding {

// PREMUL_SUM scales first and then is a Sum; inside a site Avg is a Sum, since the mean is taken once, at the
// end. The dtype of complex numbers is that of their parts.
//
// A site's sum of float16 could pass 65504 where the mean does not: for Avg its ranks give a power of two
// less, so that nothing is rounded but what is below 2^-14, and the mean gets that back. (NCCL divides first,
// too.)
struct Reduction {
  core::DType dtype = core::DType::Float32;
  collective::ReduceOp op = collective::ReduceOp::Sum;
  c10d::ReduceOp inner = c10d::ReduceOp::SUM;
  std::optional<at::Tensor> factor_tensor;
  std::optional<double> factor;
  double back = 1;  // what a mean is multiplied by

  // `inside`: of how many ranks there may be a sum before there is a mean. Throws InvalidArgument or
  // Unsupported where there is no such reduction of tensors like this one.
  static Reduction of(const at::Tensor& tensor, const c10d::ReduceOp& op, int inside);

  // New memory where there is something to scale, else `input` itself.
  at::Tensor scaled(const at::Tensor& input) const {
    if (factor_tensor) return input.mul(factor_tensor->to(input.options()));
    return factor ? input.mul(*factor) : input;
  }
  void keep_scale() {
    back = 1;
    factor.reset();
  }
  void scale_back(const at::Tensor& result) const {
    if (back != 1) result.mul_(back);
  }
  // Makes what `ranks` ranks have added up the result, where nobody has taken the mean yet.
  void finish_sum(const at::Tensor& sum, int ranks) const;
};

// What an inner backend is given in place of int16, which neither Gloo nor NCCL has: what int32 gives has the
// same lower half.
inline at::ScalarType inner_type(at::ScalarType type) {
  return type == at::kShort ? at::kInt : type;
}

}  // namespace geocomm::binding
