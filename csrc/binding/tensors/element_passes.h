// Passes over the elements of torch tensors: those of local steps (collective/outer/outer_kernels.h), for
// geocomm/sync/local_steps, and of scales (element_scales.h), for geocomm/sync/gradients. They throw
// geocomm's exceptions, and are called without the GIL.
//
// All tensors are float32 on the CPU, contiguous and of any shape; InvalidArgument for others, and for sizes
// that do not fit. A list of tensors stands for their elements one after the other.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "binding/torch/torch_prelude.h"

namespace geocomm::binding {

// delta = anchor - local. Returns the sum of its squares, which is finite exactly where all of it is. delta
// may be the only tensor of `local`. kept: gets a copy of `local`.
double outer_delta(const at::Tensor& anchor, const Tensors& local, const at::Tensor& delta,
                   const std::optional<at::Tensor>& kept);

// mean = the sum of deltas[k] * shares[k]. Returns the sum of its squares.
double outer_mean(const Tensors& deltas, const std::vector<double>& shares, const at::Tensor& mean);

// The step of Nesterov's momentum, in place. Returns the sums of the squares of what the anchor moved, and of
// delta.
std::pair<double, double> outer_step(double lr, double mu, const at::Tensor& delta, const at::Tensor& anchor,
                                     const std::optional<at::Tensor>& momentum);

// own = (own - begin) + anchor, in place. Autograd takes note that `own` was written to.
void outer_carry(const Tensors& own, const at::Tensor& anchor, const at::Tensor& begin);

// own = own * keep + anchor * (1 - keep), in place.
void outer_blend(const Tensors& own, const at::Tensor& anchor, double keep);

// mean_square becomes weight * the square of the elements of `values` from `first` on, as many as it has, and
// 1 - weight of what it was; scale its powers of two, at least 2^floor_bits times the geometric mean of all
// of `values`.
void learn_scales(const at::Tensor& values, std::int64_t first, double weight, std::int64_t floor_bits,
                  const at::Tensor& mean_square, const at::Tensor& scale);

}  // namespace geocomm::binding
