// Collectives read and write the memory of tensors. What torch does for them on the way (copies, views, sums)
// is none of autograd's business: it records nothing, so no result has a gradient that came over a network
// unseen, and it forbids nothing, so parameters, views of them and inference tensors may be written, as by
// backends that write to memory directly.
#pragma once

#include <functional>
#include <utility>

#include "binding/torch/torch_prelude.h"

namespace geocomm::binding {

// For the life of the object, on this thread: on the one that calls and on each that runs a stage, but never
// around callbacks of users, who want their own autograd.
class BelowAutograd {
 public:
  BelowAutograd() = default;
  BelowAutograd(const BelowAutograd&) = delete;
  BelowAutograd& operator=(const BelowAutograd&) = delete;

 private:
  const c10::InferenceMode tensors_are_normal_{false};  // those that are made on the way, wherever they end
  const at::AutoDispatchBelowADInplaceOrView below_;
};

template <typename Result>
std::function<Result()> below_autograd(std::function<Result()> stage) {
  if (!stage) return stage;
  return [stage = std::move(stage)] {
    const BelowAutograd guard;
    return stage();
  };
}

}  // namespace geocomm::binding
