#include "binding/module/reconfigurable_group.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

#include <utility>

#include "binding/torch/python_thread.h"
#include "core/log.h"

namespace geocomm::binding {

using core::StatusCode;

ReconfigurableGroup::ReconfigurableGroup(int rank, int size, Milliseconds timeout, HandleFunction handle,
                                         ReconfigureFunction reconfigure,
                                         ProcessGroupGeocomm::ShutdownFunction on_shutdown)
    : Backend(rank, size),
      options_(c10::make_intrusive<ProcessGroupGeocomm::Options>(timeout)),
      handle_(std::move(handle)),
      reconfigure_(std::move(reconfigure)),
      on_shutdown_(std::move(on_shutdown)) {}

ReconfigurableGroup::~ReconfigurableGroup() {
  const GilRelease released;  // as ~ProcessGroupGeocomm
  on_shutdown_ = nullptr;     // the interpreter may be gone
  current_.reset();
}

ReconfigurableGroup::Current ReconfigurableGroup::current() const {
  std::lock_guard lock(mutex_);
  return current_;
}

ReconfigurableGroup::Current ReconfigurableGroup::members() const {
  require_own_process(mark_);
  Current now = current();
  if (!now) {
    throw_status(StatusCode::Aborted,
                 "this process group has no members: they meet in reconfigure(), before the first operation "
                 "and again after one that failed");
  }
  return now;
}

void ReconfigurableGroup::adopt(Current next) {
  next->setGroupUid(getGroupUid());
  std::lock_guard lock(mutex_);
  rank_ = next->getRank();
  size_ = next->getSize();
  current_ = std::move(next);
}

void ReconfigurableGroup::leave() {
  Current before;
  {
    std::lock_guard lock(mutex_);
    before.swap(current_);
  }
  if (before) before->shutdown();
}

c10d::ReconfigureHandle ReconfigurableGroup::get_reconfigure_handle() const {
  require_own_process(mark_);
  return handle_();
}

WorkPtr ReconfigurableGroup::reconfigure(const c10d::ReconfigureOptions& options) {
  require_own_process(mark_);
  reconfigure_(*this, options);
  auto done = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  done->markCompleted(c10::IValue(Tensors()));
  return c10d::Work::create_from_future(done);
}

void ReconfigurableGroup::setTimeout(Milliseconds timeout) {
  options_->timeout = timeout;
  if (const Current now = current()) now->setTimeout(timeout);
}

void ReconfigurableGroup::startCoalescing() {
  members()->startCoalescing();
}
WorkPtr ReconfigurableGroup::endCoalescing() {
  return members()->endCoalescing();
}

WorkPtr ReconfigurableGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return members()->broadcast(tensors, options);
}
WorkPtr ReconfigurableGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return members()->allreduce(tensors, options);
}
WorkPtr ReconfigurableGroup::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return members()->allreduce_sparse(tensors, options);
}
WorkPtr ReconfigurableGroup::allreduce_coalesced(Tensors& tensors,
                                                 const c10d::AllreduceCoalescedOptions& options) {
  return members()->allreduce_coalesced(tensors, options);
}
WorkPtr ReconfigurableGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return members()->reduce(tensors, options);
}
WorkPtr ReconfigurableGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) {
  return members()->allgather(outputs, inputs, options);
}
WorkPtr ReconfigurableGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::AllgatherOptions& options) {
  return members()->_allgather_base(output, input, options);
}
WorkPtr ReconfigurableGroup::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  return members()->allgather_coalesced(outputs, inputs, options);
}
WorkPtr ReconfigurableGroup::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                             const c10d::AllgatherOptions& options) {
  return members()->allgather_into_tensor_coalesced(outputs, inputs, options);
}
WorkPtr ReconfigurableGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::GatherOptions& options) {
  return members()->gather(outputs, inputs, options);
}
WorkPtr ReconfigurableGroup::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                const c10d::GatherOptions& options) {
  return members()->gather_into_tensor(output, input, options);
}
WorkPtr ReconfigurableGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                     const c10d::ScatterOptions& options) {
  return members()->scatter(outputs, inputs, options);
}
WorkPtr ReconfigurableGroup::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                            const c10d::ReduceScatterOptions& options) {
  return members()->reduce_scatter(outputs, inputs, options);
}
WorkPtr ReconfigurableGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::ReduceScatterOptions& options) {
  return members()->_reduce_scatter_base(output, input, options);
}
WorkPtr ReconfigurableGroup::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                             const c10d::ReduceScatterOptions& options) {
  return members()->reduce_scatter_tensor_coalesced(outputs, inputs, options);
}
WorkPtr ReconfigurableGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                           std::vector<int64_t>& output_sizes,
                                           std::vector<int64_t>& input_sizes,
                                           const c10d::AllToAllOptions& options) {
  return members()->alltoall_base(output, input, output_sizes, input_sizes, options);
}
WorkPtr ReconfigurableGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllToAllOptions& options) {
  return members()->alltoall(outputs, inputs, options);
}
void ReconfigurableGroup::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  members()->monitoredBarrier(options, wait_all_ranks);
}
WorkPtr ReconfigurableGroup::send(Tensors& tensors, int peer, int tag) {
  return members()->send(tensors, peer, tag);
}
WorkPtr ReconfigurableGroup::recv(Tensors& tensors, int peer, int tag) {
  return members()->recv(tensors, peer, tag);
}
WorkPtr ReconfigurableGroup::recvAnysource(Tensors& tensors, int tag) {
  return members()->recvAnysource(tensors, tag);
}
WorkPtr ReconfigurableGroup::barrier(const c10d::BarrierOptions& options) {
  return members()->barrier(options);
}

uint64_t ReconfigurableGroup::getSequenceNumberForGroup() {
  const Current now = current();
  return now ? now->getSequenceNumberForGroup() : 0;
}

void ReconfigurableGroup::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  if (const Current now = current()) now->setGroupUid(uid);
}

c10d::ErrorType ReconfigurableGroup::getError() {
  const Current now = current();
  return now ? now->getError() : c10d::ErrorType::SUCCESS;
}

void ReconfigurableGroup::abort() {
  if (const Current now = current()) now->abort();
}

void ReconfigurableGroup::shutdown() {
  if (!mark_.is_here()) return;
  leave();
  if (auto ended = std::exchange(on_shutdown_, nullptr)) ended();
}

}  // namespace geocomm::binding

#endif
