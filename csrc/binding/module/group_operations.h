// GroupOperations: the operations of both c10d backends, ProcessGroupGeocomm and ReconfigurableGroup. Each
// checks its arguments and enters, which hands it to the inner backend of a group inside one site, or to
// WanCollectives. Method names are PyTorch's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "binding/calls/site_collectives.h"
#include "binding/calls/wan_collectives.h"
#include "core/fork.h"

namespace geocomm::binding {

class ProcessGroupGeocomm;

class GroupOperations : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(Milliseconds timeout) : c10d::Backend::Options("geocomm", timeout) {}
  };
  // Called by shutdown(), once, without the GIL: the group has ended, its counters and links can still be
  // read. Not called for a group that nobody shut down. Must not throw.
  using ShutdownFunction = std::function<void()>;

  const std::string getBackendName() const override { return "geocomm"; }
  bool supportsTimeEstimation() const override { return false; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  c10::intrusive_ptr<Options> options() const { return options_; }
  void setSequenceNumberForGroup() override {}

  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  // Sum or mean with a codec of the caller's and, where there is one, its residual: WanCollectives'. Inside
  // one site the inner backend's sum; the residual is then empty.
  WorkPtr all_reduce_compressed(const at::Tensor& tensor, const std::string& codec,
                                const std::optional<at::Tensor>& residual, bool average, double decay,
                                const std::optional<at::Tensor>& next,
                                const std::optional<at::Tensor>& scale);
  // The elements of such a tensor that this rank encodes for the WAN: [start, stop); (0, 0) inside one site.
  std::pair<std::uint64_t, std::uint64_t> encoded_range(std::uint64_t elements, at::ScalarType dtype);
  WorkPtr allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&) override;
  WorkPtr reduce(Tensors&, const c10d::ReduceOptions&) override;
  WorkPtr allgather(std::vector<Tensors>&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr gather(std::vector<Tensors>&, Tensors&, const c10d::GatherOptions&) override;
#if GEOCOMM_TORCH_SINCE(14)
  // torch's gather_single comes here.
  WorkPtr gather_into_tensor(at::Tensor&, at::Tensor&, const c10d::GatherOptions&) override;
#endif
  WorkPtr scatter(Tensors&, std::vector<Tensors>&, const c10d::ScatterOptions&) override;
  WorkPtr reduce_scatter(Tensors&, std::vector<Tensors>&, const c10d::ReduceScatterOptions&) override;
  WorkPtr _reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors&, Tensors&, const c10d::ReduceScatterOptions&) override;
  WorkPtr alltoall_base(at::Tensor&, at::Tensor&, std::vector<int64_t>&, std::vector<int64_t>&,
                        const c10d::AllToAllOptions&) override;
  WorkPtr alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) override;
  void monitoredBarrier(const c10d::BarrierOptions&, bool wait_all_ranks) override;
  WorkPtr send(Tensors&, int peer, int tag) override;
  WorkPtr recv(Tensors&, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors&, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions&) override;

#if GEOCOMM_TORCH_SINCE(15)
  // Not where there are GPUs. NCCL's Works are handed out there, whose ends nobody tells; and torch asks each
  // Work as it is issued whether it is completed, which is a use of one on a stream (EnqueueOrder).
  bool supportsCompletionHooks() const override { return !at::hasCUDA(); }
  void registerCompletionHook(int64_t hook_id, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(int64_t hook_id) override;
#endif

 protected:
  GroupOperations(int rank, int size, Milliseconds timeout, ShutdownFunction on_shutdown)
      : Backend(rank, size),
        options_(c10::make_intrusive<Options>(timeout)),
        on_shutdown_(std::move(on_shutdown)) {}

  // The group of the ranks that are there now, whose operations these are.
  virtual c10::intrusive_ptr<ProcessGroupGeocomm> members() = 0;

  const core::ProcessMark mark_;
  const c10::intrusive_ptr<Options> options_;
  ShutdownFunction on_shutdown_;

 private:
  int rank();
  int size();
  Milliseconds timeout_or_default(Milliseconds timeout = c10d::kUnsetTimeout);
  // Every operation goes through here once its arguments are checked: below autograd, into call(calls) with
  // the group's Collectives.
  template <typename Call>
  WorkPtr enter(const at::Device& device, Call&& call);
  // Whether the parts of all ranks may differ in size: NCCL's own, inside one site.
  bool parts_may_differ(const at::Device& device);

  const std::shared_ptr<CompletionHooks> completion_hooks_ = std::make_shared<CompletionHooks>();
};

}  // namespace geocomm::binding
