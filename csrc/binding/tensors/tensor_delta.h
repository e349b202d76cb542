// Deltas of torch tensors: what geocomm.make_delta and geocomm.apply_delta call. They throw geocomm's
// exceptions, and are called without the GIL.
#pragma once

#include <cstddef>

#include "binding/torch/torch_prelude.h"

namespace geocomm::binding {

// How `tensor` differs from `base`, of the same dtype and number of elements, as a uint8 tensor (delta.h).
// Both lie on the CPU. `threads` as in compress_tensor().
at::Tensor make_tensor_delta(const at::Tensor& tensor, const at::Tensor& base, std::size_t threads);

// Makes `tensor`, which is the base, the tensor that the delta was made of, in place.
void apply_tensor_delta(const at::Tensor& delta, const at::Tensor& tensor, std::size_t threads);

}  // namespace geocomm::binding
