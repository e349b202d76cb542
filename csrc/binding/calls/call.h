// WanCollectives::Call: how an operation is issued: its Work, its steps, its lane. Private to the wan_*.cc
// files.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "binding/calls/wan_collectives.h"
#include "binding/device/device_side.h"
#include "binding/torch/below_autograd.h"
#include "binding/torch/staging.h"
#include "collective/run/op_log.h"
#include "collective/run/transfer.h"

namespace geocomm::binding {

inline at::Tensor part_view(const at::Tensor& flat_tensor, std::uint64_t begin, std::uint64_t count) {
  return flat_tensor.narrow(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(count));
}

inline std::int64_t signed_size(std::uint64_t n) {
  return static_cast<std::int64_t>(n);
}

class WanCollectives::Call {
 public:
  Call(WanCollectives& collectives, collective::OpKind kind, c10d::OpType type, const char* title,
       const at::Device& device, Milliseconds timeout, std::uint64_t elements, core::DType dtype,
       std::optional<std::uint64_t> seq = std::nullopt)
      : collectives_(collectives.shared_from_this()),
        type_(type),
        title_(title),
        side_(device, core::Deadline::after(timeout)),
        context_{.kind = kind,
                 .seq = seq ? *seq : collectives.next_seq_.fetch_add(1),
                 .elements = elements,
                 .dtype = dtype,
                 .deadline = core::Deadline::after(timeout),
                 .policy = collectives.exchange_->policy(),
                 .keep_alive = nullptr} {
    collective::OpTimes times;
    times.group = collectives.exchange_->group();
    times.seq = collective::shown_seq(context_);
    times.kind = kind;
    times.dtype = dtype;
    times.elements = elements;
    context_.record = std::make_shared<collective::OpRecord>(std::move(times));
  }

  const DeviceSide& side() const { return side_; }
  const collective::WanPolicy& policy() const { return *context_.policy; }
  void use_codec(const collective::CallerCodec& caller) { context_.caller = caller; }
  // `state` owns the memory that the exchange touches.
  collective::OpContext context(std::shared_ptr<void> state) const {
    auto context = context_;
    context.keep_alive = std::move(state);
    return context;
  }

  // Queues the operation behind those of the group that were issued before; or, for messages, which have no
  // steps inside a site, runs it beside them.
  WorkPtr issue(Tensors inputs, Tensors outputs, Steps steps, Runs runs = Runs::InOrder) const {
    steps = {below_autograd(std::move(steps.pre)), below_autograd(std::move(steps.exchange)),
             below_autograd(std::move(steps.post))};
    return side_.is_ordered() ? issue_on_stream(inputs, outputs, std::move(steps), runs)
                              : issue_on_host(inputs, outputs, std::move(steps), runs);
  }

  // The same for a message in memory of the host that is moved from, or to, where it is: begun on the calling
  // thread, and ended on the one that waits for the Work.
  WorkPtr move(const at::Tensor& tensor, std::span<const collective::SendPiece> sends,
               std::span<const collective::ReceivePiece> receives) const {
    auto operation = std::make_shared<Operation>(id(), context_.deadline, collectives_);
    auto work = make_work({tensor}, {tensor});
    work->set_operation(operation);
    operation->on_done(completes(work));
    core::Result<collective::Exchange::MoveEnd> begun = begin_move(operation, tensor, sends, receives);
    if (!begun.is_ok()) Operation::over(operation);
    operation->set_steps(
        {nullptr, [begun = std::move(begun)] { return begun.is_ok() ? begun.value()() : begun.status(); },
         nullptr});
    collectives_->lane_.submit(operation, Runs::OnWaiter);
    return work;
  }

 private:
  // Until its end `operation` is over at its deadline.
  core::Result<collective::Exchange::MoveEnd> begin_move(
      const std::shared_ptr<Operation>& operation, const at::Tensor& tensor,
      std::span<const collective::SendPiece> sends,
      std::span<const collective::ReceivePiece> receives) const {
    GEOCOMM_ASSIGN_OR_RETURN(const core::DeadlineTimer::Id timer,
                             deadline_timer().add(context_.deadline, [late = std::weak_ptr(operation)] {
                               if (auto operation = late.lock()) Operation::over(std::move(operation));
                             }));
    auto end = collectives_->exchange_->begin_move(context(std::make_shared<at::Tensor>(tensor)), sends,
                                                   receives, [operation] { Operation::over(operation); });
    if (!end.is_ok()) {
      deadline_timer().cancel(timer);
      return end.status();
    }
    return collective::Exchange::MoveEnd([timer, end = std::move(end).value()] {
      const core::Status status = end();
      deadline_timer().cancel(timer);
      return status;
    });
  }

  WorkPtr issue_on_host(const Tensors& inputs, const Tensors& outputs, Steps steps, Runs runs) const {
    const auto operation = std::make_shared<Operation>(id(), context_.deadline, collectives_);
    if (steps.pre) steps.pre = [side = side_, pre = std::move(steps.pre)] { side.run(pre); };
    if (steps.post) steps.post = [side = side_, post = std::move(steps.post)] { side.run(post); };
    operation->set_steps(std::move(steps));
    operation->may_keep_thread(may_keep_thread());
    auto work = make_work(inputs, outputs);
    work->set_operation(operation);
    operation->on_done(completes(work));
    collectives_->lane_.submit(operation, runs);
    return work;
  }

  // On the caller's thread; nothing here waits.
  WorkPtr issue_on_stream(const Tensors& inputs, const Tensors& outputs, Steps steps, Runs runs) const {
    const bool ends_here =
        collectives_->alone_in_site() || context_.kind == collective::OpKind::ReduceScatter;
    const auto inner = runs == Runs::Beside       ? InnerUse::Beside
                       : ends_here || !steps.post ? InnerUse::First
                                                  : InnerUse::FirstAndLast;
    const auto operation = side_.operation(id(), context_.deadline, collectives_, inner);
    steps.pre = [side = side_, pre = std::move(steps.pre), inputs, outputs] {
      side.follow_caller();
      side.keep_for_stream(inputs);
      side.keep_for_stream(outputs);
      if (pre) pre();
    };
    operation->set_steps(std::move(steps));
    auto work = make_work(inputs, outputs);
    // Before the exchange, which may be over at once, completes the work.
    work->set_operation(operation, inner != InnerUse::FirstAndLast);
    operation->on_done(completes(work));
    collectives_->stream_lane_.submit(operation, runs);
    return work;
  }

  OperationId id() const { return {title_, static_cast<std::int64_t>(context_.seq)}; }
  // Copies of its tensors are done by one thread.
  bool may_keep_thread() const {
    constexpr std::uint64_t kSmallBytes = 64 * 1024;
    if (context_.kind == collective::OpKind::Barrier || at::get_num_threads() == 1) return true;
    // 0: the ranks' elements differ.
    return context_.elements > 0 && context_.elements * core::size_of(context_.dtype) <= kSmallBytes;
  }
  // Nothing that may throw comes after it: what is in the log must end.
  c10::intrusive_ptr<GeoWork> make_work(const Tensors& inputs, const Tensors& outputs) const {
    collectives_->require_working();
    auto work = c10::make_intrusive<GeoWork>(collectives_->topology().rank(), type_,
                                             (std::string("geocomm:") + title_).c_str(), context_.seq, inputs,
                                             outputs, collectives_->exposed_);
    work->set_record(context_.record);
    collective::process_op_log().issue(context_.record);
    return work;
  }
  // The callbacks of users run in here: not below autograd.
  Operation::Done completes(const c10::intrusive_ptr<GeoWork>& work) const {
    return [collectives = collectives_, record = context_.record,
            ending = GeoWork::ending_of(work)](const std::exception_ptr& error) {
      const auto there = ending.work.lock();
      if (there && error) collectives->mark_told();
      record->ended(error != nullptr);
      ending.complete(there, error);
    };
  }

  std::shared_ptr<WanCollectives> collectives_;
  c10d::OpType type_;
  const char* title_;
  DeviceSide side_;
  collective::OpContext context_;
};

}  // namespace geocomm::binding
