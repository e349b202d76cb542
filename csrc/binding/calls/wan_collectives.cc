#include "binding/calls/wan_collectives.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "binding/calls/wan_call.h"
#include "binding/torch/below_autograd.h"
#include "core/log.h"
#include "core/str.h"

namespace geocomm::binding {

using core::StatusCode;

namespace {

// Operations of a group that may be on the WAN at the same time; further ones wait in order.
constexpr std::size_t kMaxConcurrentExchanges = 16;

// How long an error from inside the site waits for the news of who died: Gloo only knows a closed connection,
// and the neighbours of a dead process believe that it is dead after 5 s of refused connections
// (transport/link/redialer.cc).
constexpr std::chrono::seconds kNewsGrace{8};

// What the other operations of the group fail with: the same, without the operation that met it.
core::Status news(const core::Status& cause) {
  return core::Status(cause.code(), cause.message()).with_peer(cause.peer());
}

// An inner operation that was given up ends at its own deadline, and its backend's destructor waits for that.
void abandon(InnerBackends inner, WorkPtr work) {
  blocking_executor().submit([inner = std::move(inner), work = std::move(work)]() mutable {
    try {
      work->wait();
    } catch (const std::exception& e) {
      core::log(core::LogLevel::Debug, "an operation inside the site that was given up: ", e.what());
    }
    work.reset();
    inner.clear();
  });
}

}  // namespace

void GeoWork::over(c10::intrusive_ptr<GeoWork> work) {
  GeoWork& self = *work;
  std::lock_guard lock(self.end_mutex_);
  self.over_ = true;
  if (!self.end_ && !self.end_begun_) return;
  self.share_of_over_ = std::move(work);
  if (!self.end_ || self.waiting_for_end_ == 0) return self.over_unattended_locked();
  self.over_changed_.notify_all();
}

void GeoWork::over_unattended_locked() {
  blocking_executor().post([work = std::move(share_of_over_)] { work->run_end(); });
}

WorkPtr join_works(int rank, c10d::OpType type, const char* title, std::vector<WorkPtr> works,
                   Tensors outputs, std::shared_ptr<ExposedTime> exposed) {
  auto joined =
      c10::make_intrusive<GeoWork>(rank, type, title, 0, Tensors{}, std::move(outputs), std::move(exposed));
  complete_after(joined, std::move(works), nullptr);
  return joined;
}

namespace {

GeoWork* on_stream(const WorkPtr& work) {
  auto* const own = dynamic_cast<GeoWork*>(work.get());
  return own != nullptr && own->is_on_stream() ? own : nullptr;
}

// complete_after() where some of `works` are on streams; the others are of inner backends, which can make a
// stream wait as well.
void complete_on_stream_after(const c10::intrusive_ptr<GeoWork>& joined, std::vector<WorkPtr> works,
                              std::function<void()> then) {
  const auto first = std::ranges::find_if(works, [](const WorkPtr& work) { return on_stream(work); });
  const DeviceSide side((*first)->result().front().device());
  const auto together = side.operation(InnerUse::Beside);
  together->open();  // each work has gates of its own
  StreamStages stages;
  stages.around = [stream = side.stream()](const std::function<void()>& run) {
    DeviceSide::run_around(stream, run);
  };
  stages.post = [works, then = std::move(then)] {
    for (const auto& work : works) {
      if (on_stream(work) != nullptr) {
        work->getFuture()->wait();
      } else if (work) {
        work->wait();
      }
    }
    if (then) then();
  };
  stages.enqueued = joined->completes_future();
  stages.to_exception = [](const core::Status& status) { return to_exception(status); };
  together->set_stages(std::move(stages));
  together->enqueue_first();
  joined->set_on_stream([together] { together->enqueue_rest(); },
                        std::ranges::all_of(works, [](const WorkPtr& work) {
                          const auto* own = on_stream(work);
                          return own == nullptr || own->ends_unused();
                        }));
  blocking_executor().submit(
      [together, works = std::move(works), ending = GeoWork::ending_of(joined)]() mutable {
        std::exception_ptr error;
        for (const auto& work : works) {
          auto* const own = on_stream(work);
          if (own == nullptr) continue;
          if (const auto failure = own->wait_for_end(false); failure && !error) error = failure;
        }
        works.clear();
        together->enqueue_rest();
        error = together->end(error);
        ending.complete(error);
      });
}

}  // namespace

void complete_after(const c10::intrusive_ptr<GeoWork>& joined, std::vector<WorkPtr> works,
                    std::function<void()> then) {
  then = below_autograd(std::move(then));
  if (std::ranges::any_of(works, [](const WorkPtr& work) { return on_stream(work) != nullptr; })) {
    return complete_on_stream_after(joined, std::move(works), std::move(then));
  }
  blocking_executor().submit([joined, works = std::move(works), then = std::move(then)]() mutable {
    std::exception_ptr error;
    const auto attempt = [&error](const auto& step) {
      try {
        step();
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    };
    for (auto& work : works) {
      attempt([&] {
        if (auto* const own = dynamic_cast<GeoWork*>(work.get())) {
          const auto future = own->future_of_end();
          future->wait();
          if (future->hasError()) std::rethrow_exception(future->exception_ptr());
        } else if (work) {
          work->wait();
        }
      });
    }
    if (!error && then) attempt(then);
    works.clear();
    then = nullptr;
    joined->complete(error);
  });
}

WanCollectives::WanCollectives(std::unique_ptr<collective::Exchange> exchange, InnerBackends inner,
                               bool preserve_inputs, std::shared_ptr<FailureNotice> notice,
                               CloseGroup close_group)
    : exchange_(std::move(exchange)),
      inner_(std::move(inner)),
      preserve_inputs_(preserve_inputs),
      notice_(std::move(notice)),
      close_group_(std::move(close_group)),
      pipeline_(blocking_executor(), kMaxConcurrentExchanges,
                [this](const std::exception_ptr& error) { mark_failed(status_of(error)); }) {}

void WanCollectives::start() {
  notice_->listen([self = weak_from_this()](const core::Status& why) {
    if (const auto group = self.lock()) group->abort(why);
  });
}

BackendPtr WanCollectives::inner(const at::Device& device, bool post) const {
  const auto found = inner_.find(device.type());
  if (found == inner_.end()) {
    throw_status(StatusCode::Unsupported,
                 core::str("no backend inside the site for tensors on ", device.str(),
                           "; this process group serves CPU", inner_.contains(at::kCUDA) ? " and CUDA" : "",
                           " tensors"));
  }
  return post ? found->second.post : found->second.pre;
}

bool WanCollectives::has_failed() const {
  std::lock_guard lock(failed_->mutex);
  return !failed_->cause.is_ok();
}

void WanCollectives::require_working() {
  std::lock_guard lock(failed_->mutex);
  if (failed_->cause.is_ok()) return;
  if (!std::exchange(failed_->told, true)) throw_if_error(news(failed_->cause));
  throw_status(StatusCode::Aborted,
               core::str("this process group failed earlier (", failed_->cause.to_string(),
                         "); destroy it and make a new one"));
}

core::Status WanCollectives::failure() const {
  std::lock_guard lock(failed_->mutex);
  return failed_->cause.is_ok() ? core::Status::ok() : news(failed_->cause);
}

core::StatusCode WanCollectives::failure_code() const {
  std::lock_guard lock(failed_->mutex);
  return failed_->cause.code();
}

// After one failed operation the ranks no longer agree on what comes next, so the group is over.
void WanCollectives::mark_failed(const core::Status& why) {
  end_group(why, why, transport::QueuedChunks::Drop);
}

void WanCollectives::end_group(const core::Status& why, const core::Status& said,
                               transport::QueuedChunks queued) {
  {
    std::lock_guard lock(failed_->mutex);
    if (!failed_->cause.is_ok()) return;
    failed_->cause = why;
  }
  failed_->changed.notify_all();
  notice_->send(said);
  exchange_->abort(news(why));
  close_group_(news(why), queued);
}

void WanCollectives::finish_inner(const WorkPtr& work) {
  if (!work) return;
  if (StreamOperation::current() != nullptr) {
    work->wait();  // makes the stream wait, not the host
    return;
  }
  struct End {
    bool reached = false;  // guarded by failed->mutex
    std::exception_ptr error;
    std::shared_ptr<Failure> failed;
    void reach() {
      {
        std::lock_guard lock(failed->mutex);
        reached = true;
      }
      failed->changed.notify_all();
    }
  };
  const auto end = std::make_shared<End>();
  end->failed = failed_;
  c10::intrusive_ptr<at::ivalue::Future> future;
  try {
    future = work->getFuture();
  } catch (const std::exception&) {  // some of Gloo's works have none, and do their part in wait()
  }
  if (future) {
    future->addCallback([end](at::ivalue::Future&) { end->reach(); });
  } else {
    blocking_executor().submit([end, work, inner = inner_] {
      try {
        work->wait();
      } catch (...) {
        end->error = std::current_exception();
      }
      end->reach();
    });
  }
  {
    std::unique_lock lock(failed_->mutex);
    failed_->changed.wait(lock, [&] { return end->reached || !failed_->cause.is_ok(); });
    if (!end->reached) {
      if (future) abandon(inner_, work);
      std::rethrow_exception(to_exception(news(failed_->cause)));
    }
  }
  try {
    if (future) work->wait();
    if (end->error) std::rethrow_exception(end->error);
  } catch (const std::exception&) {
    std::unique_lock lock(failed_->mutex);
    failed_->changed.wait_for(lock, kNewsGrace, [&] { return !failed_->cause.is_ok(); });
    if (failed_->cause.is_ok()) throw;
    std::rethrow_exception(to_exception(news(failed_->cause)));
  }
}

void WanCollectives::reduce_scatter_in_site(const BackendPtr& backend, const at::Tensor& part,
                                            const at::Tensor& input, const c10d::ReduceOp& op,
                                            Milliseconds timeout) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = op;
  options.timeout = timeout;
  if (part.scalar_type() != at::kShort) {
    auto result = part, summands = input;
    return finish_inner(backend->_reduce_scatter_base(result, summands, options));
  }
  // Neither Gloo nor NCCL has int16. What int32 gives has the same lower half.
  auto result = at::empty_like(part, at::kInt);
  auto summands = input.to(at::kInt);
  finish_inner(backend->_reduce_scatter_base(result, summands, options));
  part.copy_(result);
}

void WanCollectives::all_gather_in_site(const BackendPtr& backend, const at::Tensor& all,
                                        const at::Tensor& part, Milliseconds timeout) {
  auto to = flat_bytes(all);
  auto from = flat_bytes(part);
  c10d::AllgatherOptions options;
  options.timeout = timeout;
  finish_inner(backend->_allgather_base(to, from, options));
}

void WanCollectives::abort(const core::Status& why) {
  mark_failed(why);
  pipeline_.fail(to_exception(news(why)));
}

void WanCollectives::leave() {
  const core::Status why(StatusCode::Aborted, "the process group was shut down");
  notice_->close();
  // What the last operations have queued goes out: this rank is done with them, the others are not.
  end_group(why, core::Status::ok(), transport::QueuedChunks::Send);
  pipeline_.fail(to_exception(why));
}

}  // namespace geocomm::binding
