// ProcessGroupGeocomm: the c10d backend. A group inside one site delegates plainly to the inner backend; one
// that spans sites goes through WanCollectives. Method names are PyTorch's.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "binding/calls/wan_collectives.h"
#include "binding/module/process_resources.h"
#include "core/fork.h"

namespace geocomm::binding {

// A share of a group's WanCollectives. `->` throws Aborted in a forked child, since threads and connections
// are the parent's.
class OwnWan {
 public:
  explicit OwnWan(std::shared_ptr<WanCollectives> wan) : wan_(std::move(wan)) {}

  explicit operator bool() const { return wan_ != nullptr; }
  WanCollectives* operator->() const {
    require_own_process(mark_);
    return wan_.get();
  }
  WanCollectives& operator*() const { return *operator->(); }
  void reset() { wan_.reset(); }

 private:
  std::shared_ptr<WanCollectives> wan_;
  core::ProcessMark mark_;
};

// In a forked child every call throws Aborted, but for those that end a group: these leave it to the parent.
class ProcessGroupGeocomm : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(Milliseconds timeout) : c10d::Backend::Options("geocomm", timeout) {}
  };
  // Makes the backend of a sub-group, or null for ranks that are not in it. Called without the GIL.
  using SplitFunction = std::function<BackendPtr(const c10::intrusive_ptr<ProcessGroupGeocomm>& parent,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<c10d::Backend::Options>& options)>;
  // Called by shutdown(), once, without the GIL: the group has ended, its counters and links can still be
  // read. Not called for a group that nobody shut down. Must not throw.
  using ShutdownFunction = std::function<void()>;

  // `wan` is null where all ranks are at one site; then `inner` serves everything. `process` must have been
  // acquired for this group, which releases it.
  ProcessGroupGeocomm(int rank, int size, Milliseconds timeout, InnerBackends inner,
                      std::shared_ptr<WanCollectives> wan, std::shared_ptr<ProcessResources> process,
                      SplitFunction split, ShutdownFunction on_shutdown);
  ~ProcessGroupGeocomm() override;

  const std::string getBackendName() const override { return "geocomm"; }
  bool supportsSplitting() const override { return static_cast<bool>(split_); }
  bool supportsCoalescing() const override;
  bool supportsTimeEstimation() const override { return false; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  c10::intrusive_ptr<Options> options() const { return options_; }
  void setTimeout(Milliseconds timeout) override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  // Sum or mean with a codec of the caller's and, where there is one, its residual: WanCollectives'. Inside
  // one site the inner backend's sum; the residual is then empty.
  WorkPtr all_reduce_compressed(const at::Tensor& tensor, const std::string& codec,
                                const std::optional<at::Tensor>& residual, bool average, double decay,
                                const std::optional<at::Tensor>& next,
                                const std::optional<at::Tensor>& scale);
  // The elements of such a tensor that this rank encodes for the WAN: [start, stop); (0, 0) inside one site.
  std::pair<std::uint64_t, std::uint64_t> encoded_range(std::uint64_t elements, at::ScalarType dtype) const;
  WorkPtr allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&) override;
  WorkPtr reduce(Tensors&, const c10d::ReduceOptions&) override;
  WorkPtr allgather(std::vector<Tensors>&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr gather(std::vector<Tensors>&, Tensors&, const c10d::GatherOptions&) override;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
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

  // Operations so far, messages included, as Gloo counts them. ProcessGroup itself refuses them to every
  // backend from outside of torch; Backend's own methods and DETAIL debugging call them.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return issued_.load(); }
  void setGroupUid(const std::string&) override;
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>&,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>&) override;
  c10d::ErrorType getError() override;
  // Both are idempotent and never hang: abort() ends everything at once, shutdown() first gives what is in
  // flight a moment.
  void abort() override;
  void shutdown() override;

  bool spans_sites() const { return static_cast<bool>(wan_); }
  // Whether shutdown() was called, or the group is that of a parent process.
  bool closed() const;
  // Only of a group that spans sites.
  const OwnWan& wan() const { return wan_; }

 private:
  c10d::Backend& inner(const at::Device& device) const;
  Milliseconds timeout_or_default(Milliseconds timeout) const;
  // Every operation goes through here once its arguments are checked: below autograd, into
  // inside(c10d::Backend&), by the inner backend for `device`, or into across(WanCollectives&).
  template <typename Inside, typename Across>
  WorkPtr enter(const at::Device& device, Inside&& inside, Across&& across);
  // A reduction by the inner backend, reduce(options), of `results` without complex numbers, which Gloo does
  // not have. Nor has it a mean of integers: a sum and then a division.
  template <typename Options, typename Reduce>
  WorkPtr reduce_inside(const Tensors& results, const Options& options, Reduce&& reduce);
  void for_each_inner(const std::function<void(c10d::Backend&)>& visit) const;

  const core::ProcessMark mark_;
  const c10::intrusive_ptr<Options> options_;
  InnerBackends inner_;  // changed by the destructor only, as are wan_ and on_shutdown_
  OwnWan wan_;
  const std::shared_ptr<ProcessResources> process_;
  const SplitFunction split_;
  ShutdownFunction on_shutdown_;
  std::atomic<std::uint64_t> issued_{0};
  mutable std::mutex mutex_;  // guards coalescing_, coalesced_, closed_, split_store_, split_child_
  bool coalescing_ = false;
  bool closed_ = false;
  std::vector<WorkPtr> coalesced_;
  // The last split: torch asks once per device type, with the same store.
  c10::intrusive_ptr<c10d::Store> split_store_;
  BackendPtr split_child_;
};

}  // namespace geocomm::binding
