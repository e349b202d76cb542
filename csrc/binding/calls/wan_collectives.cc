#include "binding/calls/wan_collectives.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "binding/calls/call.h"
#include "binding/torch/below_autograd.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/str.h"

namespace geocomm::binding {

using core::StatusCode;

namespace {

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
  blocking_executor().post([inner = std::move(inner), work = std::move(work)]() mutable {
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

namespace {

// Of operations that end with others, each of which has told of its own failure.
class Joined final : public OperationGroup {
 public:
  core::Status failure() const override { return core::Status::ok(); }
  void failed(const std::exception_ptr&) override {}
  std::exception_ptr to_exception(core::Status status, const OperationId&) const override {
    return binding::to_exception(status);
  }
  std::exception_ptr named(const std::exception_ptr& error, const OperationId&) const override {
    return error;
  }
};

GeoWork* on_stream(const WorkPtr& work) {
  auto* const own = dynamic_cast<GeoWork*>(work.get());
  return own != nullptr && own->is_on_stream() ? own : nullptr;
}

// Waits on the host for all of them; throws the first error.
void wait_for_all(const std::vector<WorkPtr>& works) {
  std::exception_ptr error;
  for (const auto& work : works) {
    try {
      if (auto* const own = dynamic_cast<GeoWork*>(work.get())) {
        const auto future = own->future_of_end();
        future->wait();
        if (future->hasError()) std::rethrow_exception(future->exception_ptr());
      } else if (work) {
        work->wait();
      }
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

// The same for those on streams, of which the program is told when they are on the stream.
void wait_for_ends(const std::vector<WorkPtr>& works) {
  std::exception_ptr error;
  for (const auto& work : works) {
    auto* const own = on_stream(work);
    if (own == nullptr) continue;
    if (const auto failure = own->wait_for_end(false); failure && !error) error = failure;
  }
  if (error) std::rethrow_exception(error);
}

// Makes the current stream wait.
void wait_on_stream(const std::vector<WorkPtr>& works) {
  for (const auto& work : works) {
    if (auto* const own = on_stream(work)) {
      own->block_stream();
    } else if (work) {
      work->wait();
    }
  }
}

// The lanes of all joins: these are in no order.
struct JoinLanes {
  HostLane host{blocking_executor()};
  StreamLane stream{host};
};
constinit core::PerProcess<JoinLanes> g_join_lanes;

}  // namespace

void join_works(const c10::intrusive_ptr<GeoWork>& joined, std::vector<WorkPtr> works,
                std::function<void()> then) {
  then = below_autograd(std::move(then));
  const auto group = std::make_shared<Joined>();
  const auto never = core::Deadline::after(std::chrono::hours(24 * 365));
  const auto all = std::make_shared<std::vector<WorkPtr>>(std::move(works));
  const auto completes = [&] {
    return [ending = GeoWork::ending_of(joined)](const std::exception_ptr& error) {
      ending.complete(ending.work.lock(), error);
    };
  };
  const auto first = std::ranges::find_if(*all, [](const WorkPtr& work) { return on_stream(work); });
  if (first == all->end()) {
    const auto operation = std::make_shared<Operation>(OperationId{}, never, group);
    operation->set_steps({[all] { wait_for_all(*all); }, nullptr, std::move(then)});
    joined->set_operation(operation);
    operation->on_done(completes());
    return g_join_lanes.get().host.submit(operation, Runs::Beside);
  }
  const DeviceSide side((*first)->result().front().device(), never);
  const auto operation = side.operation({}, never, group, InnerUse::Beside);
  operation->open();  // each work has gates of its own
  operation->set_steps({nullptr,
                        [all] {
                          wait_for_ends(*all);
                          return core::Status::ok();
                        },
                        [all, then = std::move(then)] {
                          wait_on_stream(*all);
                          if (then) then();
                        }});
  joined->set_operation(operation, std::ranges::all_of(*all, [](const WorkPtr& work) {
                          const auto* own = on_stream(work);
                          return own == nullptr || own->ends_unused();
                        }));
  operation->on_done(completes());
  g_join_lanes.get().stream.submit(operation, Runs::Beside);
}

WorkPtr join_works(int rank, c10d::OpType type, const char* title, std::vector<WorkPtr> works,
                   Tensors outputs, std::shared_ptr<ExposedTime> exposed, std::function<void()> then) {
  auto joined =
      c10::make_intrusive<GeoWork>(rank, type, title, 0, Tensors{}, std::move(outputs), std::move(exposed));
  join_works(joined, std::move(works), std::move(then));
  return joined;
}

WanCollectives::WanCollectives(std::unique_ptr<collective::Exchange> exchange, InnerBackends inner,
                               bool preserve_inputs, std::shared_ptr<FailureNotice> notice,
                               CloseGroup close_group)
    : exchange_(std::move(exchange)),
      inner_(std::move(inner)),
      preserve_inputs_(preserve_inputs),
      notice_(std::move(notice)),
      close_group_(std::move(close_group)) {}

void WanCollectives::start() {
  notice_->listen([self = weak_from_this()](const core::Status& why) {
    if (const auto group = self.lock()) group->abort(why);
  });
}

BackendPtr WanCollectives::inner(const at::Device& device, bool post) const {
  if (alone_in_site()) return nullptr;
  const auto found = inner_.find(device.type());
  if (found == inner_.end()) {
    throw_status(StatusCode::Unsupported,
                 core::str("no backend inside the site for tensors on ", device.str(),
                           "; this process group serves CPU", inner_.contains(at::kCUDA) ? " and CUDA" : "",
                           " tensors"));
  }
  return post ? found->second.post : found->second.pre;
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

void WanCollectives::failed(const std::exception_ptr& error) {
  mark_failed(status_of(error));
}

std::exception_ptr WanCollectives::to_exception(core::Status status, const OperationId& operation) const {
  return binding::to_exception(std::move(status).with_op(operation.title, operation.seq));
}

std::exception_ptr WanCollectives::named(const std::exception_ptr& error,
                                         const OperationId& operation) const {
  const core::Status status = status_of(error).with_op(operation.title, operation.seq);
  record_error(status);
  return binding::to_exception(status);
}

void WanCollectives::mark_told() {
  std::lock_guard lock(failed_->mutex);
  failed_->told = true;
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
    const core::Task wait = [end, work, inner = inner_] {
      try {
        work->wait();
      } catch (...) {
        end->error = std::current_exception();
      }
      end->reach();
    };
    if (!blocking_executor().try_post(wait)) wait();  // it ends at its own deadline
  }
  {
    std::unique_lock lock(failed_->mutex);
    failed_->changed.wait(lock, [&] { return end->reached || !failed_->cause.is_ok(); });
    if (!end->reached) {
      if (future) abandon(inner_, work);
      std::rethrow_exception(binding::to_exception(news(failed_->cause)));
    }
  }
  try {
    if (future) work->wait();
    if (end->error) std::rethrow_exception(end->error);
  } catch (const std::exception&) {
    std::unique_lock lock(failed_->mutex);
    failed_->changed.wait_for(lock, kNewsGrace, [&] { return !failed_->cause.is_ok(); });
    if (failed_->cause.is_ok()) throw;
    std::rethrow_exception(binding::to_exception(news(failed_->cause)));
  }
}

void WanCollectives::reduce_scatter_in_site(const BackendPtr& backend, const at::Tensor& part,
                                            const at::Tensor& input, const c10d::ReduceOp& op,
                                            Milliseconds timeout) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = op;
  options.timeout = timeout;
  const auto type = inner_type(part.scalar_type());
  auto result = type == part.scalar_type() ? part : at::empty_like(part, type);
  auto summands = input.to(type);
  finish_inner(backend->_reduce_scatter_base(result, summands, options));
  if (!result.is_same(part)) part.copy_(result);
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
  lane_.fail(binding::to_exception(news(why)));
}

void WanCollectives::leave() {
  const core::Status why(StatusCode::Aborted, "the process group was shut down");
  notice_->close();
  // What the last operations have queued goes out: this rank is done with them, the others are not.
  end_group(why, core::Status::ok(), transport::QueuedChunks::Send);
  lane_.fail(binding::to_exception(why));
}

}  // namespace geocomm::binding
