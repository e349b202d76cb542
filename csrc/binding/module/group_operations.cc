#include "binding/module/group_operations.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "binding/module/arguments.h"
#include "binding/module/process_group.h"
#include "binding/torch/below_autograd.h"
#include "binding/torch/staging.h"
#include "core/str.h"

namespace geocomm::binding {

using core::StatusCode;

int GroupOperations::rank() {
  return members()->getRank();
}
int GroupOperations::size() {
  return members()->getSize();
}
Milliseconds GroupOperations::timeout_or_default(Milliseconds timeout) {
  return timeout == c10d::kUnsetTimeout ? members()->options()->timeout : timeout;
}

template <typename Call>
WorkPtr GroupOperations::enter(const at::Device& device, Call&& call) {
  // Inside a site, too: torch makes outputs part of a graph while Gloo's threads write to them, which may
  // then refuse to.
  const BelowAutograd guard;
  const auto group = members();
  Collectives& calls = *group->calls();
  calls.require_device(device);
  auto work = call(calls);
  group->note_issued(work);
  if (auto* const own = dynamic_cast<Completing*>(work.get())) own->completion().tell(completion_hooks_);
  return work;
}

bool GroupOperations::parts_may_differ(const at::Device& device) {
  return !device.is_cpu() && !members()->spans_sites();
}

WorkPtr GroupOperations::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const int root = checked_rank(options.rootRank, size(), "broadcast");
  check_written(tensors, "broadcast");
  const auto device = device_of(tensors, "broadcast");
  const auto& tensor = single(tensors, "broadcast");
  return enter(device, [&](Collectives& calls) {
    return calls.broadcast(tensor, root, timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const auto device = device_of(tensors, "all_reduce");
  if (tensors.front().is_sparse()) return allreduce_sparse(tensors, options);
  check_reduced(tensors, options.reduceOp, "all_reduce");
  const auto& tensor = single(tensors, "all_reduce");
  return enter(device, [&](Collectives& calls) {
    return calls.all_reduce(tensor, options.reduceOp, timeout_or_default(options.timeout));
  });
}

std::pair<std::uint64_t, std::uint64_t> GroupOperations::encoded_range(std::uint64_t elements,
                                                                       at::ScalarType dtype) {
  if (!core::is_compressible(moved_dtype(dtype))) {
    throw_status(StatusCode::Unsupported,
                 core::str("all_reduce_compressed takes tensors of float32, float16 or bfloat16, not of ",
                           c10::toString(dtype)));
  }
  const auto range = members()->calls()->encoded_range(elements);
  return {range.begin, range.end};
}

WorkPtr GroupOperations::all_reduce_compressed(const at::Tensor& tensor, const std::string& codec,
                                               const std::optional<at::Tensor>& residual, bool average,
                                               double decay, const std::optional<at::Tensor>& next,
                                               const std::optional<at::Tensor>& scale) {
  Tensors tensors{tensor};
  check_written(single(tensors, "all_reduce_compressed"), "all_reduce_compressed");
  const auto spec = value_or_throw(codec::CodecSpec::parse(codec));
  const auto [start, stop] = encoded_range(static_cast<std::uint64_t>(tensor.numel()), tensor.scalar_type());
  if (!std::isfinite(decay)) throw_status(StatusCode::InvalidArgument, "decay must be finite");
  for (const auto& [name, values] :
       {std::pair{"residual", residual}, std::pair{"next_residual", next}, std::pair{"scale", scale}}) {
    if (!values) continue;
    if (values->scalar_type() != at::kFloat || values->device() != tensor.device() || values->dim() != 1 ||
        !is_flat_view(*values) || static_cast<std::uint64_t>(values->numel()) != stop - start) {
      throw_status(
          StatusCode::InvalidArgument,
          core::str(name, " must be a contiguous one-dimensional float32 tensor of ", stop - start,
                    " elements on ", tensor.device().str(), " (encoded_range()), got ", values->numel(),
                    " of ", c10::toString(values->scalar_type()), " on ", values->device().str()));
    }
  }
  if ((next || scale) && !residual) {
    throw_status(StatusCode::InvalidArgument, "next_residual or scale without residual");
  }
  if (next && next->numel() > 0 && next->is_alias_of(*residual)) {
    throw_status(StatusCode::InvalidArgument, "next_residual must not share memory with residual");
  }
  return enter(tensor.device(), [&](Collectives& calls) {
    return calls.all_reduce_compressed(tensor, spec, residual, next, scale, average, decay,
                                       timeout_or_default());
  });
}

WorkPtr GroupOperations::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const auto device = device_of(tensors, "allreduce_sparse");
  if (tensors.size() != 1 || !tensors.front().is_sparse()) {
    throw_status(StatusCode::InvalidArgument, "allreduce_sparse takes one sparse COO tensor per rank");
  }
  if (options.reduceOp != c10d::ReduceOp::SUM) {
    throw_status(StatusCode::Unsupported, "all_reduce of sparse tensors takes ReduceOp.SUM only");
  }
  check_sparse_sum(tensors.front());
  return enter(device, [&](Collectives& calls) {
    return calls.all_reduce_sparse(tensors.front(), timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::allreduce_coalesced(Tensors& tensors,
                                             const c10d::AllreduceCoalescedOptions& options) {
  const auto device = device_of(tensors, "all_reduce_coalesced");
  check_reduced(tensors, options.reduceOp, "all_reduce_coalesced");
  for (const auto& tensor : tensors) check_dense(tensor, "all_reduce_coalesced");
  return enter(device, [&](Collectives& calls) {
    return calls.all_reduce_coalesced(tensors, options.reduceOp, timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const auto device = device_of(tensors, "reduce");
  const int root = checked_rank(options.rootRank, size(), "reduce");
  check_reduced(tensors, options.reduceOp, "reduce");
  const auto& tensor = single(tensors, "reduce");
  return enter(device, [&](Collectives& calls) {
    return calls.reduce(tensor, options.reduceOp, root, timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::AllgatherOptions& options) {
  check_written(outputs, "all_gather");
  const auto device = device_of(inputs, "all_gather");
  const auto& list = single_list(outputs, true, "all_gather");
  const auto& input = single(inputs, "all_gather");
  check_pieces(list, input, size(), "all_gather", parts_may_differ(device));
  return enter(device, [&](Collectives& calls) {
    return calls.all_gather(list, input, timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::_allgather_base(at::Tensor& output, at::Tensor& input,
                                         const c10d::AllgatherOptions& options) {
  check_written(output, "all_gather");
  const auto device = device_of({input}, "all_gather");
  check_whole(output, input, size(), "all_gather");
  return enter(device, [&](Collectives& calls) {
    return calls.all_gather({output}, input, timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& options) {
  check_written(outputs, "all_gather_coalesced");
  const auto device = device_of(inputs, "all_gather_coalesced");
  // outputs[rank][i] is where rank's inputs[i] goes.
  std::vector<Tensors> columns(inputs.size());
  for (const auto& row : outputs) {
    if (row.size() != inputs.size()) {
      throw_status(StatusCode::InvalidArgument,
                   "all_gather_coalesced: every output list needs one tensor per input");
    }
    for (std::size_t i = 0; i < row.size(); ++i) columns[i].push_back(row[i]);
  }
  for (std::size_t i = 0; i < columns.size(); ++i) {
    check_dense(inputs[i], "all_gather_coalesced");
    check_pieces(columns[i], inputs[i], size(), "all_gather_coalesced");
  }
  return enter(device, [&](Collectives& calls) {
    return calls.all_gather_coalesced(columns, inputs, timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& options) {
  check_written(outputs, "all_gather_coalesced");
  const auto device = device_of(inputs, "all_gather_coalesced");
  check_wholes(outputs, inputs, size(), "all_gather_coalesced");
  std::vector<Tensors> lists;
  for (const auto& output : outputs) lists.push_back({output});
  return enter(device, [&](Collectives& calls) {
    return calls.all_gather_coalesced(lists, inputs, timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                const c10d::GatherOptions& options) {
  const int root = checked_rank(options.rootRank, size(), "gather");
  check_written(outputs, "gather");
  const auto device = device_of(inputs, "gather");
  const bool is_root = root == rank();
  const auto& list = single_list(outputs, is_root, "gather");
  const auto& input = single(inputs, "gather");
  if (is_root) check_pieces(list, input, size(), "gather");
  return enter(device, [&](Collectives& calls) {
    return calls.gather(list, input, root, timeout_or_default(options.timeout));
  });
}

#if GEOCOMM_TORCH_SINCE(14)
WorkPtr GroupOperations::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                            const c10d::GatherOptions& options) {
  std::vector<Tensors> outputs;
  if (checked_rank(options.rootRank, size(), "gather_single") == rank()) {
    check_whole(output, input, size(), "gather_single");
    check_written(output, "gather_single");
    Tensors rows;
    for (int rank = 0; rank < size(); ++rank) {
      rows.push_back(output.view({-1}).narrow(0, rank * input.numel(), input.numel()).view(input.sizes()));
    }
    outputs.push_back(std::move(rows));
  }
  Tensors inputs{input};
  return gather(outputs, inputs, options);
}
#endif

WorkPtr GroupOperations::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                 const c10d::ScatterOptions& options) {
  const int root = checked_rank(options.rootRank, size(), "scatter");
  check_written(outputs, "scatter");
  const auto device = device_of(outputs, "scatter");
  const bool is_root = root == rank();
  const auto& list = single_list(inputs, is_root, "scatter");
  const auto& output = single(outputs, "scatter");
  if (is_root) check_pieces(list, output, size(), "scatter");
  return enter(device, [&](Collectives& calls) {
    return calls.scatter(output, list, root, timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ReduceScatterOptions& options) {
  const auto device = device_of(outputs, "reduce_scatter");
  check_reduced(outputs, options.reduceOp, "reduce_scatter");
  const auto& list = single_list(inputs, true, "reduce_scatter");
  const auto& output = single(outputs, "reduce_scatter");
  check_pieces(list, output, size(), "reduce_scatter", parts_may_differ(device));
  return enter(device, [&](Collectives& calls) {
    return calls.reduce_scatter(output, list, options.reduceOp, timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::ReduceScatterOptions& options) {
  const auto device = device_of({output}, "reduce_scatter");
  check_reduced({output}, options.reduceOp, "reduce_scatter");
  check_whole(input, output, size(), "reduce_scatter");
  return enter(device, [&](Collectives& calls) {
    return calls.reduce_scatter(output, {input}, options.reduceOp, timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::ReduceScatterOptions& options) {
  const auto device = device_of(outputs, "reduce_scatter_coalesced");
  check_reduced(outputs, options.reduceOp, "reduce_scatter_coalesced");
  check_wholes(inputs, outputs, size(), "reduce_scatter_coalesced");
  return enter(device, [&](Collectives& calls) {
    return calls.reduce_scatter_coalesced(outputs, inputs, options.reduceOp,
                                          timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::alltoall_base(at::Tensor& output, at::Tensor& input,
                                       std::vector<int64_t>& output_splits,
                                       std::vector<int64_t>& input_splits,
                                       const c10d::AllToAllOptions& options) {
  check_written(output, "all_to_all");
  check_splits(output, output_splits, size(), "output");
  check_splits(input, input_splits, size(), "input");
  const auto device = device_of({output}, "all_to_all");
  check_dense(output, "all_to_all");
  check_dense(input, "all_to_all");
  check_exchange(split_rows(output, output_splits, size()), split_rows(input, input_splits, size()), rank(),
                 size());
  return enter(device, [&](Collectives& calls) {
    return calls.all_to_all_single(output, input, output_splits, input_splits,
                                   timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  check_written(outputs, "all_to_all");
  const auto device = device_of(inputs, "all_to_all");
  check_exchange(outputs, inputs, rank(), size());
  return enter(device, [&](Collectives& calls) {
    return calls.all_to_all(outputs, inputs, outputs, timeout_or_default(options.timeout));
  });
}

void GroupOperations::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  enter(at::kCPU, [&](Collectives& calls) {
    return calls.monitored_barrier(wait_all_ranks, timeout_or_default(options.timeout));
  });
}

WorkPtr GroupOperations::send(Tensors& tensors, int peer, int tag) {
  check_message(peer, tag, rank(), size(), "send");
  const auto device = device_of(tensors, "send");
  const auto& tensor = single(tensors, "send");
  return enter(device,
               [&](Collectives& calls) { return calls.send(tensor, peer, tag, timeout_or_default()); });
}

WorkPtr GroupOperations::recv(Tensors& tensors, int peer, int tag) {
  check_message(peer, tag, rank(), size(), "recv");
  check_written(tensors, "recv");
  const auto device = device_of(tensors, "recv");
  const auto& tensor = single(tensors, "recv");
  return enter(device,
               [&](Collectives& calls) { return calls.recv(tensor, peer, tag, timeout_or_default()); });
}

WorkPtr GroupOperations::recvAnysource(Tensors& tensors, int tag) {
  check_tag(tag, "recv");
  check_written(tensors, "recv");
  const auto device = device_of(tensors, "recv");
  const auto& tensor = single(tensors, "recv");
  return enter(device, [&](Collectives& calls) { return calls.recv_any(tensor, tag, timeout_or_default()); });
}

WorkPtr GroupOperations::barrier(const c10d::BarrierOptions& options) {
  const bool served = options.device && members()->has_inner(options.device->type());
  const at::Device device = served ? *options.device : at::Device(at::kCPU);
  return enter(
      device, [&](Collectives& calls) { return calls.barrier(device, timeout_or_default(options.timeout)); });
}

#if GEOCOMM_TORCH_SINCE(15)
void GroupOperations::registerCompletionHook(int64_t hook_id, c10d::CompletionHook hook) {
  completion_hooks_->add(hook_id, [hook = std::move(hook)](std::uint64_t key) {
    hook({.completionKey = key, .duration_ms = std::nullopt});
  });
}

void GroupOperations::unregisterCompletionHook(int64_t hook_id) {
  completion_hooks_->remove(hook_id);
}
#endif

}  // namespace geocomm::binding
