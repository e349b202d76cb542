// WanCollectives: every collective of a group that spans sites, as three steps (inner → WAN → inner). See
// host_lane.h for their order and layout.h for who owns what in between.
//
// Tensors on an accelerator: see device_side.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "binding/calls/collectives.h"
#include "binding/calls/feedback_work.h"
#include "binding/calls/geo_work.h"
#include "binding/calls/inner_backends.h"
#include "binding/calls/reduction.h"
#include "binding/calls/split_rows.h"
#include "binding/operation/executors.h"
#include "binding/operation/failure_notice.h"
#include "binding/operation/host_lane.h"
#include "binding/operation/stream_operation.h"
#include "binding/torch/torch_prelude.h"
#include "collective/run/exchange.h"
#include "transport/channel.h"

namespace geocomm::binding {

// transport::Endpoint::close_group() of one group.
using CloseGroup = std::function<void(const core::Status& why, transport::QueuedChunks queued)>;

class WanCollectives final : public Collectives,
                             public OperationGroup,
                             public std::enable_shared_from_this<WanCollectives> {
 public:
  WanCollectives(std::unique_ptr<collective::Exchange> exchange, InnerBackends inner, bool preserve_inputs,
                 std::shared_ptr<FailureNotice> notice, CloseGroup close_group);
  // Once, right after construction: hears of the failures of other ranks from now on.
  void start();

  void require_device(const at::Device& device) const override { inner(device, false); }
  WorkPtr all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, Milliseconds timeout) override;
  WorkPtr all_reduce_compressed(const at::Tensor& tensor, const codec::CodecSpec& codec,
                                const std::optional<at::Tensor>& residual,
                                const std::optional<at::Tensor>& next, const std::optional<at::Tensor>& scale,
                                bool average, double decay, Milliseconds timeout) override;
  collective::Interval encoded_range(std::uint64_t elements) const override {
    return collective::part_of(elements, topology().local_size(), topology().local_rank());
  }
  WorkPtr all_reduce_coalesced(const Tensors& tensors, const c10d::ReduceOp& op,
                               Milliseconds timeout) override;
  WorkPtr all_reduce_sparse(const at::Tensor& tensor, Milliseconds timeout) override;
  WorkPtr reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, int root, Milliseconds timeout) override;
  WorkPtr reduce_scatter(const at::Tensor& output, const Tensors& inputs, const c10d::ReduceOp& op,
                         Milliseconds timeout) override;
  WorkPtr reduce_scatter_coalesced(const Tensors& outputs, const Tensors& inputs, const c10d::ReduceOp& op,
                                   Milliseconds timeout) override;
  WorkPtr all_gather(const Tensors& outputs, const at::Tensor& input, Milliseconds timeout) override;
  WorkPtr all_gather_coalesced(const std::vector<Tensors>& outputs, const Tensors& inputs,
                               Milliseconds timeout) override;
  WorkPtr broadcast(const at::Tensor& tensor, int root, Milliseconds timeout) override;
  WorkPtr gather(const Tensors& outputs, const at::Tensor& input, int root, Milliseconds timeout) override;
  WorkPtr scatter(const at::Tensor& output, const Tensors& inputs, int root, Milliseconds timeout) override;
  WorkPtr all_to_all(const Tensors& outputs, const Tensors& inputs, const Tensors& results,
                     Milliseconds timeout) override;
  WorkPtr all_to_all_single(const at::Tensor& output, const at::Tensor& input, const Splits& output_splits,
                            const Splits& input_splits, Milliseconds timeout) override;
  WorkPtr barrier(const at::Device& device, Milliseconds timeout) override;
  WorkPtr monitored_barrier(bool wait_all_ranks, Milliseconds timeout) override;
  WorkPtr send(const at::Tensor& tensor, int peer, int tag, Milliseconds timeout) override;
  WorkPtr recv(const at::Tensor& tensor, int peer, int tag, Milliseconds timeout) override;
  WorkPtr recv_any(const at::Tensor& tensor, int tag, Milliseconds timeout) override;

  // Fails everything in flight and to come, here and on the other ranks.
  void abort(const core::Status& why);
  // The end of a group that is idle (or has failed): the other ranks may still be busy with the last
  // operation.
  void leave();
  bool wait_idle(core::Deadline deadline) {
    stream_lane_.use_all();
    return lane_.wait_idle(deadline);
  }
  // The code of the operation that broke the group; Ok: none did.
  core::StatusCode failure_code() const;
  bool has_failed() const { return failure_code() != core::StatusCode::Ok; }
  const collective::Topology& topology() const { return exchange_->topology(); }
  collective::ExchangeStats stats() const { return exchange_->stats(); }
  // Of operations that are issued from now on; all ranks change it between the same two operations.
  core::Status set_policy(std::shared_ptr<const collective::WanPolicy> policy) {
    return exchange_->set_policy(std::move(policy));
  }
  std::vector<collective::PeerRate> take_rates() { return exchange_->take_rates(); }
  const std::shared_ptr<ExposedTime>& exposed() const { return exposed_; }

 private:
  class Call;
  struct ReduceTarget;
  struct Pieces;
  class SparseSum;

  Reduction reduction_of(const at::Tensor& tensor, const c10d::ReduceOp& op) const;
  ReduceTarget all_receive(const at::Tensor& tensor) const;
  // Null where this rank is alone in its site. Throws Unsupported where there is none for the device.
  BackendPtr inner(const at::Device& device, bool post) const;
  bool alone_in_site() const { return topology().local_size() == 1; }
  // all_reduce and reduce: scatter the reduction over the site, reduce stripes over the WAN, gather in the
  // site.
  WorkPtr reduce_stripes(const Call& call, const at::Tensor& tensor, const Reduction& reduction,
                         const ReduceTarget& target, Milliseconds timeout,
                         std::shared_ptr<CallerFeedback> feedback = nullptr);
  WorkPtr move_pieces(const Call& call, const Tensors& inputs, const Tensors& results,
                      std::function<void(Pieces&)> choose, std::function<void()> move_inside);
  std::vector<int> ranks_elsewhere() const;  // those of other sites
  WorkPtr point_to_point(const at::Tensor& tensor, int peer, int tag, bool sends, Milliseconds timeout);
  void mark_failed(const core::Status& why);
  // The caller has got the failure out of an operation.
  void mark_told();
  // The group is over: the others are told `said`, and the transport lets go of it. The first call counts.
  void end_group(const core::Status& why, const core::Status& said, transport::QueuedChunks queued);
  // As news for its other operations.
  core::Status failure() const override;
  void failed(const std::exception_ptr& error) override;
  std::exception_ptr to_exception(core::Status status, const OperationId& operation) const override;
  std::exception_ptr named(const std::exception_ptr& error, const OperationId& operation) const override;
  // Throws if the group has failed: what it failed with if no operation has told so yet, else Aborted.
  void require_working();
  // Waits for a Work of an inner backend (a null one is already done), or until the group fails: Gloo's own
  // wait cannot be interrupted. Throws.
  void finish_inner(const WorkPtr& work);
  // The sum (or what `op` says) over the site's ranks of the parts of `input`, one per rank; this rank's own
  // goes to `part`. Both flat, of any dtype that reduced_dtype() knows.
  void reduce_scatter_in_site(const BackendPtr& backend, const at::Tensor& part, const at::Tensor& input,
                              const c10d::ReduceOp& op, Milliseconds timeout);
  // The parts of the site's ranks, in order of rank. Both flat, of any one dtype.
  void all_gather_in_site(const BackendPtr& backend, const at::Tensor& all, const at::Tensor& part,
                          Milliseconds timeout);

  const std::unique_ptr<collective::Exchange> exchange_;
  const InnerBackends inner_;
  const bool preserve_inputs_;
  const std::shared_ptr<ExposedTime> exposed_ = std::make_shared<ExposedTime>();
  std::atomic<std::uint64_t> next_seq_{1};
  // Shared with callbacks of inner works, which may outlive the group.
  struct Failure {
    std::mutex mutex;  // guards all below
    std::condition_variable changed;
    core::Status cause;
    bool told = false;  // whether the caller has got it out of an operation
  };
  const std::shared_ptr<Failure> failed_ = std::make_shared<Failure>();
  const std::shared_ptr<FailureNotice> notice_;
  const CloseGroup close_group_;
  std::mutex mutex_;                                                  // guards p2p_counters_
  std::map<std::tuple<int, int, bool>, std::uint32_t> p2p_counters_;  // (peer, tag, sends) → messages so far
  HostLane lane_{blocking_executor()};
  StreamLane stream_lane_{lane_};
};

}  // namespace geocomm::binding
