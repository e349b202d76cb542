// WanCollectives::Call: one operation on its way: its Work, and what its stages share. Private to the
// wan_*.cc files.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "binding/device_side.h"
#include "binding/staging.h"
#include "binding/wan_collectives.h"

namespace geocomm::binding {

inline at::Tensor part_view(const at::Tensor& flat_tensor, std::uint64_t begin, std::uint64_t count) {
  return flat_tensor.narrow(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(count));
}

inline std::int64_t signed_size(std::uint64_t n) {
  return static_cast<std::int64_t>(n);
}

class WanCollectives::Call {
 public:
  Call(WanCollectives& owner, collective::OpKind kind, c10d::OpType type, const char* title,
       const at::Device& device, Milliseconds timeout, std::uint64_t elements, core::DType dtype,
       std::optional<std::uint64_t> seq = std::nullopt)
      : owner_(owner.shared_from_this()),
        type_(type),
        title_(title),
        side_(device),
        context_{.kind = kind,
                 .seq = seq ? *seq : owner.next_seq_.fetch_add(1),
                 .elements = elements,
                 .dtype = dtype,
                 .deadline = core::Deadline::after(timeout),
                 .policy = owner.exchange_->policy(),
                 .keep_alive = nullptr} {}

  const DeviceSide& side() const { return side_; }
  const collective::WanPolicy& policy() const { return *context_.policy; }
  void use_codec(const collective::CallerCodec& caller) { context_.caller = caller; }
  // `state` owns the memory that the exchange touches.
  collective::OpContext context(std::shared_ptr<void> state) const {
    auto context = context_;
    context.keep_alive = std::move(state);
    return context;
  }

  // Queues the operation behind those of the group that were issued before.
  WorkPtr issue(Tensors inputs, Tensors outputs, std::function<void()> pre,
                std::function<core::Status()> exchange, std::function<void()> post) const {
    auto work = make_work(inputs, outputs);
    StagedOperation operation;
    operation.to_exception = [call = described()](const core::Status& status) {
      return call.to_error(status);
    };
    if (side_.is_ordered()) {
      const auto on_stream = std::make_shared<StreamOperation>(side_.stream());
      operation.exchange = [on_stream, exchange = std::move(exchange)] { return on_stream->run(exchange); };
      operation.done = [work, on_stream, call = described()](std::exception_ptr error) {
        call.complete(*work, on_stream->end(error));
      };
      enqueue(*on_stream, *work, pre, post, inputs, outputs,
              [&] { owner_->pipeline_.submit(std::move(operation)); });
      return work;
    }
    operation.may_keep_thread = may_keep_thread();
    if (pre) operation.pre = [side = side_, pre = std::move(pre)] { side.run(pre); };
    if (exchange) operation.exchange = std::move(exchange);
    if (post) operation.post = [side = side_, post = std::move(post)] { side.run(post); };
    operation.done = [work, call = described()](std::exception_ptr error) { call.complete(*work, error); };
    owner_->pipeline_.submit(std::move(operation));
    return work;
  }

  // Runs the operation at once, beside those of the group: point-to-point messages, which have no stages
  // inside a site.
  WorkPtr issue_beside(Tensors inputs, Tensors outputs, std::function<void()> pre,
                       std::function<core::Status()> exchange, std::function<void()> post) const {
    auto work = make_work(inputs, outputs);
    const auto on_stream = side_.is_ordered() ? std::make_shared<StreamOperation>(side_.stream()) : nullptr;
    auto run = [=, exchange = std::move(exchange), call = described(), side = side_]() mutable {
      std::exception_ptr error;
      try {
        core::Status status;
        if (on_stream) {
          status = on_stream->run(exchange);
        } else {
          side.run(pre);
          status = exchange();
          if (status.is_ok() && post) side.run(post);
        }
        if (!status.is_ok()) error = call.to_error(std::move(status));
      } catch (...) {
        error = std::current_exception();
      }
      if (on_stream) error = on_stream->end(error);
      pre = nullptr;  // frees what they hold before anyone learns that it is done
      exchange = nullptr;
      post = nullptr;
      call.complete_beside(*work, error);
    };
    if (on_stream) {
      enqueue(*on_stream, *work, pre, post, inputs, outputs,
              [&] { blocking_executor().submit(std::move(run)); });
    } else {
      blocking_executor().submit(std::move(run));
    }
    return work;
  }

  // The same for memory of the host that is moved from, or to, where it is: begun on the calling thread, and
  // ended on the one that waits for the Work.
  WorkPtr move_beside(const at::Tensor& tensor, std::span<const collective::SendPiece> sends,
                      std::span<const collective::ReceivePiece> receives) const {
    auto work = make_work({tensor}, {tensor});
    const auto timer =
        deadline_timer().add(context_.deadline, [work = c10::weak_intrusive_ptr<GeoWork>(work)] {
          if (auto late = work.lock()) GeoWork::over(std::move(late));
        });
    auto begun = owner_->exchange_->begin_move(context(std::make_shared<at::Tensor>(tensor)), sends, receives,
                                               [work]() mutable { GeoWork::over(std::move(work)); });
    const auto end = [timer, call = described()](GeoWork& ended, const core::Status& status) {
      deadline_timer().cancel(timer);
      call.complete_beside(ended, status.is_ok() ? nullptr : call.to_error(status));
    };
    if (!begun.is_ok()) {
      end(*work, begun.status());
      return work;
    }
    work->set_end([end, end_move = std::move(begun).value()](GeoWork& ended) mutable {
      const core::Status status = end_move();
      end_move = nullptr;  // frees what it holds before anyone learns that it is done
      end(ended, status);
    });
    return work;
  }

 private:
  struct Described {
    std::shared_ptr<WanCollectives> owner;
    std::string title;
    std::int64_t seq;
    void complete(GeoWork& work, std::exception_ptr error) const {
      if (error) {
        {
          std::lock_guard lock(owner->failed_->mutex);
          owner->failed_->told = true;
        }
        const core::Status status = status_of(error).with_op(title, seq);
        record_error(status);
        error = to_exception(status);
      }
      work.complete(error);
    }
    // Of an operation beside those of the pipeline, which tells of failures itself.
    void complete_beside(GeoWork& work, std::exception_ptr error) const {
      if (error) owner->mark_failed(status_of(error));
      complete(work, error);
    }
    std::exception_ptr to_error(core::Status status) const {
      return to_exception(std::move(status).with_op(title, seq));
    }
  };

  // On the caller's thread; nothing here waits. `submit` hands the exchange to its thread. The group's
  // operations are enqueued one by one, so that the inner backends see them in order of issue.
  void enqueue(StreamOperation& on_stream, GeoWork& work, const std::function<void()>& pre,
               const std::function<void()>& post, const Tensors& inputs, const Tensors& outputs,
               const std::function<void()>& submit) const {
    std::lock_guard lock(owner_->enqueue_mutex_);
    const c10::StreamGuard guard(on_stream.stream());
    StreamOperation::current() = &on_stream;
    side_.follow_caller();
    std::exception_ptr error;
    try {
      if (pre) pre();
      on_stream.mark_ready();
    } catch (...) {
      error = std::current_exception();
    }
    if (error) {  // there is nothing to exchange: the operation and the group fail
      on_stream.mark_ready();
      owner_->mark_failed(status_of(error));
    }
    submit();
    if (!error) {
      try {
        if (post) {
          on_stream.close(0);
          post();
        }
      } catch (...) {
        error = std::current_exception();
        owner_->mark_failed(status_of(error));
      }
    }
    StreamOperation::current() = nullptr;
    side_.keep_for_stream(inputs);
    side_.keep_for_stream(outputs);
    work.complete_on_stream();
    on_stream.mark_finish(error);  // from here on the work may be completed by another thread
  }

  // Copies of its tensors are done by one thread.
  bool may_keep_thread() const {
    constexpr std::uint64_t kSmallBytes = 64 * 1024;
    if (context_.kind == collective::OpKind::Barrier || at::get_num_threads() == 1) return true;
    // 0: the ranks' elements differ.
    return context_.elements > 0 && context_.elements * core::size_of(context_.dtype) <= kSmallBytes;
  }
  Described described() const { return {owner_, title_, static_cast<std::int64_t>(context_.seq)}; }
  c10::intrusive_ptr<GeoWork> make_work(Tensors inputs, Tensors outputs) const {
    owner_->require_working();
    return c10::make_intrusive<GeoWork>(owner_->topology().rank(), type_,
                                        (std::string("geocomm:") + title_).c_str(), context_.seq,
                                        std::move(inputs), std::move(outputs), owner_->exposed_);
  }

  std::shared_ptr<WanCollectives> owner_;
  c10d::OpType type_;
  const char* title_;
  DeviceSide side_;
  collective::OpContext context_;
};

}  // namespace geocomm::binding
