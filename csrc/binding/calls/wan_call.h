// WanCollectives::Call: one operation on its way: its Work, and what its stages share. Private to the
// wan_*.cc files.
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
                 .keep_alive = nullptr} {
    collective::OpTimes times;
    times.group = owner.exchange_->group();
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

  // Queues the operation behind those of the group that were issued before.
  WorkPtr issue(Tensors inputs, Tensors outputs, std::function<void()> pre,
                std::function<core::Status()> exchange, std::function<void()> post) const {
    put_below_autograd(pre, exchange, post);
    const bool ends_here = owner_->alone_in_site() || context_.kind == collective::OpKind::ReduceScatter;
    const auto on_stream = stream_operation(ends_here || !post ? InnerUse::First : InnerUse::FirstAndLast);
    auto work = make_work(inputs, outputs);
    StagedOperation operation;
    operation.to_exception = [call = described()](const core::Status& status) {
      return call.to_error(status);
    };
    if (on_stream) {
      operation.exchange = [on_stream, exchange = std::move(exchange), call = described()] {
        return call.run(*on_stream, exchange);
      };
      operation.done = [on_stream, call = described(), ending = GeoWork::ending_of(work)](
                           std::exception_ptr error) { call.complete_on_stream(on_stream, ending, error); };
      enqueue(on_stream, work, std::move(pre), std::move(post), std::move(inputs), std::move(outputs),
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
    put_below_autograd(pre, exchange, post);
    const auto on_stream = stream_operation(InnerUse::Beside);
    auto work = make_work(inputs, outputs);
    if (on_stream) {
      auto run = [on_stream, exchange = std::move(exchange), call = described(),
                  ending = GeoWork::ending_of(work)]() mutable {
        const core::Status status = call.run(*on_stream, exchange);
        exchange = nullptr;  // frees what it holds before anyone learns that it is done
        const auto error = status.is_ok() ? nullptr : call.to_error(status);
        call.complete_on_stream(on_stream, ending, error);
      };
      enqueue(on_stream, work, std::move(pre), std::move(post), std::move(inputs), std::move(outputs),
              [&] { blocking_executor().submit(std::move(run)); });
      return work;
    }
    blocking_executor().submit(
        [=, exchange = std::move(exchange), call = described(), side = side_]() mutable {
          std::exception_ptr error;
          try {
            side.run(pre);
            core::Status status = exchange();
            if (status.is_ok() && post) side.run(post);
            if (!status.is_ok()) error = call.to_error(std::move(status));
          } catch (...) {
            error = std::current_exception();
          }
          pre = nullptr;  // frees what they hold before anyone learns that it is done
          exchange = nullptr;
          post = nullptr;
          call.complete_beside(*work, error);
        });
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
    work->set_end(
        [end, end_move = std::move(begun).value()](GeoWork& ended) mutable {
          const core::Status status = end_move();
          end_move = nullptr;  // frees what it holds before anyone learns that it is done
          end(ended, status);
        },
        context_.deadline);
    return work;
  }

 private:
  // Stages run on threads of their own. What follows them there, `done`, runs callbacks of users: it is not.
  static void put_below_autograd(std::function<void()>& pre, std::function<core::Status()>& exchange,
                                 std::function<void()>& post) {
    pre = below_autograd(std::move(pre));
    exchange = below_autograd(std::move(exchange));
    post = below_autograd(std::move(post));
  }

  struct Described {
    std::shared_ptr<WanCollectives> owner;
    std::string title;
    std::int64_t seq;
    core::Deadline deadline;
    std::shared_ptr<collective::OpRecord> record;
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
      record->ended(error != nullptr);
      work.complete(error);
    }
    // On a thread that may block.
    core::Status run(StreamOperation& on_stream, const std::function<core::Status()>& exchange) const {
      return on_stream.run(exchange, deadline, [this] { return owner->failure(); });
    }
    // After run(), or instead of it.
    void complete_on_stream(const std::shared_ptr<StreamOperation>& on_stream, const GeoWork::Ending& ending,
                            std::exception_ptr error) const {
      if (error) owner->mark_failed(status_of(error));
      // Somebody holds the Work and does not wait for it. Other ranks of the site may wait for this one's
      // last stage; after so long, few programs are still to make calls that need it in a certain place.
      constexpr std::chrono::seconds kUnused{10};
      if (!owner->order_->settle(on_stream) && !error) {
        on_stream->wait_until_enqueued(core::Deadline::after(kUnused));
      }
      owner->order_->use(on_stream);
      error = on_stream->end(error);
      if (error) owner->mark_failed(status_of(error));
      if (const auto work = ending.work.lock()) return complete(*work, error);
      if (error) record_error(status_of(error).with_op(title, seq));
      record->ended(error != nullptr);
      ending.complete(error);
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

  // On the caller's thread; nothing here waits. `submit` hands the exchange to its thread.
  void enqueue(const std::shared_ptr<StreamOperation>& on_stream, const c10::intrusive_ptr<GeoWork>& work,
               std::function<void()> pre, std::function<void()> post, Tensors inputs, Tensors outputs,
               const std::function<void()>& submit) const {
    StreamStages stages;
    stages.around = [stream = side_.stream()](const std::function<void()>& run) {
      DeviceSide::run_around(stream, run);
    };
    stages.pre = [side = side_, pre = std::move(pre), inputs = std::move(inputs),
                  outputs = std::move(outputs)] {
      side.follow_caller();
      side.keep_for_stream(inputs);
      side.keep_for_stream(outputs);
      if (pre) pre();
    };
    stages.post = std::move(post);
    stages.enqueued = work->completes_future();
    stages.failed = [call = described()](const std::exception_ptr& error) {
      call.owner->mark_failed(status_of(error));
    };
    stages.to_exception = [call = described()](const core::Status& status) { return call.to_error(status); };
    on_stream->set_stages(std::move(stages));
    // Before the exchange, which may be over at once, completes the work.
    work->set_on_stream([order = owner_->order_, on_stream] { order->use(on_stream); },
                        on_stream->inner() != InnerUse::FirstAndLast);
    owner_->order_->issue(on_stream, submit);
  }

  // nullptr: on the host.
  std::shared_ptr<StreamOperation> stream_operation(InnerUse inner) const {
    return side_.is_ordered() ? side_.operation(inner) : nullptr;
  }
  // Copies of its tensors are done by one thread.
  bool may_keep_thread() const {
    constexpr std::uint64_t kSmallBytes = 64 * 1024;
    if (context_.kind == collective::OpKind::Barrier || at::get_num_threads() == 1) return true;
    // 0: the ranks' elements differ.
    return context_.elements > 0 && context_.elements * core::size_of(context_.dtype) <= kSmallBytes;
  }
  Described described() const {
    return {owner_, title_, static_cast<std::int64_t>(context_.seq), context_.deadline, context_.record};
  }
  // Nothing that may throw comes after it: what is in the log must end.
  c10::intrusive_ptr<GeoWork> make_work(Tensors inputs, Tensors outputs) const {
    owner_->require_working();
    auto work = c10::make_intrusive<GeoWork>(owner_->topology().rank(), type_,
                                             (std::string("geocomm:") + title_).c_str(), context_.seq,
                                             std::move(inputs), std::move(outputs), owner_->exposed_);
    work->set_record(context_.record);
    collective::process_op_log().issue(context_.record);
    return work;
  }

  std::shared_ptr<WanCollectives> owner_;
  c10d::OpType type_;
  const char* title_;
  DeviceSide side_;
  collective::OpContext context_;
};

}  // namespace geocomm::binding
