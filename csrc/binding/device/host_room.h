// Memory of the host for what is in that of a device.
#pragma once

#include "binding/operation/stream_operation.h"
#include "binding/torch/staging.h"
#include "binding/torch/torch_prelude.h"

namespace geocomm::binding {

// Memory to receive into what `tensor` will hold: pinned, or, for a CPU tensor, its own. Where no more can be
// pinned, any: the driver reads that when a copy is enqueued, so the operation on a stream, if there is one,
// enqueues it late.
inline at::Tensor host_room_for(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  const auto on_host = tensor.options().device(at::kCPU);
  try {
    return at::empty(tensor.sizes(), on_host.pinned_memory(true));
  } catch (const c10::Error&) {
    if (auto* const operation = StreamOperation::current()) operation->wait_for_exchange();
    return at::empty(tensor.sizes(), on_host);
  }
}

// The tensor itself on CPU; else a copy of it there.
inline at::Tensor to_host(const at::Tensor& tensor) {
  const auto host = host_room_for(tensor);
  if (!host.is_same(tensor)) host.copy_(tensor, kNonBlocking);
  return host;
}

}  // namespace geocomm::binding
