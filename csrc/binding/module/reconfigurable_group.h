// ReconfigurableGroup: the c10d backend of init_process_group(enable_reconfigure=True), whose ranks come and
// go. torch and its users keep this one object; every call goes to the ProcessGroupGeocomm of the ranks that
// are there now. Needs a torch whose backends may change their rank and size (2.14).
#pragma once

#include "binding/module/process_group.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

#include <functional>
#include <mutex>
#include <string>

namespace geocomm::binding {

// Operations may be issued from several threads, but not while the ranks change.
class ReconfigurableGroup : public c10d::Backend {
 public:
  using Current = c10::intrusive_ptr<ProcessGroupGeocomm>;
  // What this process tells the others. Called without the GIL.
  using HandleFunction = std::function<std::string()>;
  // Calls leave() and adopt(); returns once all ranks have met. Called without the GIL.
  using ReconfigureFunction =
      std::function<void(ReconfigurableGroup& group, const c10d::ReconfigureOptions& options)>;

  ReconfigurableGroup(int rank, int size, Milliseconds timeout, HandleFunction handle,
                      ReconfigureFunction reconfigure, ProcessGroupGeocomm::ShutdownFunction on_shutdown);
  ~ReconfigurableGroup() override;

  // From now on calls go to `next`, and this is its rank and size.
  void adopt(Current next);
  // The ranks of before are left: what is in flight gets a moment to end. Until adopt(), operations throw
  // Aborted. Nothing where nobody is there.
  void leave();
  // Null where there are none: before the first reconfigure(), and after a failed one.
  Current current() const;
  c10::intrusive_ptr<ProcessGroupGeocomm::Options> options() const { return options_; }

  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  // Blocks until all have met; throws what went wrong. The Work is complete.
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override;

  const std::string getBackendName() const override { return "geocomm"; }
  // Parts of a group whose ranks change are not made.
  bool supportsSplitting() const override { return false; }
  bool supportsCoalescing() const override { return false; }
  bool supportsTimeEstimation() const override { return false; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(Milliseconds timeout) override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&) override;
  WorkPtr reduce(Tensors&, const c10d::ReduceOptions&) override;
  WorkPtr allgather(std::vector<Tensors>&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr gather(std::vector<Tensors>&, Tensors&, const c10d::GatherOptions&) override;
  WorkPtr gather_into_tensor(at::Tensor&, at::Tensor&, const c10d::GatherOptions&) override;
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

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  void setGroupUid(const std::string&) override;
  c10d::ErrorType getError() override;
  // Ends what is in flight at once. reconfigure() still works.
  void abort() override;
  // For good.
  void shutdown() override;

 private:
  // Throws Aborted where nobody is there.
  Current members() const;

  const c10::intrusive_ptr<ProcessGroupGeocomm::Options> options_;
  const HandleFunction handle_;
  const ReconfigureFunction reconfigure_;
  ProcessGroupGeocomm::ShutdownFunction on_shutdown_;
  const core::ProcessMark mark_;
  mutable std::mutex mutex_;  // guards current_
  Current current_;
};

}  // namespace geocomm::binding

#endif
