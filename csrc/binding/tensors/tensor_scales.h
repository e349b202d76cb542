// element_scales.h on torch tensors, for geocomm/sync/gradients/element_scales.py. Throws geocomm's
// exceptions; called without the GIL.
#pragma once

#include <cstdint>

#include "binding/torch/torch_prelude.h"

namespace geocomm::binding {

// mean_square becomes weight * the square of the elements of `values` from `first` on, as many as it has, and
// 1 - weight of what it was; scale its powers of two, at least 2^floor_bits times the geometric mean of all
// of `values`. All contiguous float32 on the CPU, of one dimension; InvalidArgument: others, or other sizes.
void learn_scales(const at::Tensor& values, std::int64_t first, double weight, std::int64_t floor_bits,
                  const at::Tensor& mean_square, const at::Tensor& scale);

}  // namespace geocomm::binding
