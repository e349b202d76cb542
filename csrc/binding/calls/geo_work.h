// GeoWork: the Work and Future of one collective that crosses sites.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "binding/calls/completion.h"
#include "binding/device/device_side.h"
#include "binding/operation/exposed_time.h"
#include "binding/operation/operation.h"
#include "binding/torch/comm_error.h"
#include "binding/torch/python_thread.h"
#include "binding/torch/torch_prelude.h"
#include "collective/run/op_log.h"
#include "core/deadline.h"

namespace geocomm::binding {

class GeoWork : public Completing {
 public:
  // `outputs` is the Future's value (List[Tensor]). `devices`: the devices of the outputs, CPU left out.
  GeoWork(int rank, c10d::OpType type, const char* title, std::uint64_t seq, Tensors inputs, Tensors outputs,
          std::shared_ptr<ExposedTime> exposed)
      : Completing(rank, type, title, inputs),
        seq_(seq),
        outputs_(std::move(outputs)),
        future_(future_of(outputs_)),
        result_(c10::make_intrusive<at::ivalue::Future>(c10::IntType::get())),
        exposed_(std::move(exposed)) {}

  // What it is the face of, before it is handed out.
  void set_operation(std::shared_ptr<Operation> operation) { operation_ = std::move(operation); }
  // The same on a stream. It is used, maybe often, when somebody is to wait for it: the rest of it is
  // enqueued then. An error that comes later is thrown by wait() if it is known by then, and by the next
  // operation.
  //
  // `ends_unused`: it ends also if nobody uses it. Then its Future completes once the exchange is over.
  // Whoever has taken that waits on the host until then, and so has no gate in a stream while backward is
  // still being launched. Else taking the Future uses it, as letting go of the work does, and completes the
  // Future, so that a stream waits, as with NCCL's.
  void set_operation(const std::shared_ptr<StreamOperation>& operation, bool ends_unused) {
    operation_ = operation;
    ends_unused_ = ends_unused;
    enqueued_ = ends_unused ? future_of(outputs_) : future_;
    const auto completes = [outputs = outputs_](c10::intrusive_ptr<at::ivalue::Future> future) {
      return [future = std::move(future), outputs](const std::exception_ptr& error) {
        if (error) return future->setErrorIfNeeded(error);
        future->markCompleted(at::IValue(outputs));
      };
    };
    operation->when_enqueued(completes(enqueued_));
    if (ends_unused) operation->when_over(completes(future_));
  }
  ~GeoWork() override { let_go(); }
  // In place of the destructor, which comes later where there are weak references.
  void release_resources() override { let_go(); }
  struct Ending;
  static void mark(at::ivalue::Future& result, const std::exception_ptr& error) {
    const auto code = error ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
    result.markCompleted(at::IValue(static_cast<std::int64_t>(code)));
  }
  static Ending ending_of(const c10::intrusive_ptr<GeoWork>& work);

  // Learns when the program waits. Before the work is handed out.
  void set_record(std::shared_ptr<collective::OpRecord> record) { record_ = std::move(record); }

  // Exactly once. Runs the user's callbacks inline: never call it from a thread that other operations need.
  void complete(std::exception_ptr error) {
    finish(error);
    stop_counting();
    // After isCompleted() says so, which is asked by whoever has taken the key too late to be told.
    if (!error) completion_->succeeded();
    if (is_on_stream()) {
      mark(*result_, error);
    } else if (error) {
      future_->setErrorIfNeeded(error);
      mark(*result_, error);
    } else {
      future_->markCompleted(at::IValue(outputs_));
      mark(*result_, error);
    }
  }

  bool wait(std::chrono::milliseconds timeout) override {
    require_own_process(mark_);
    const ExposedTime::Wait counted(*exposed_);
    const Waiting recorded(record_.get());
    // Else the stages have synchronised their stream when the work completes: nothing is left for the
    // caller's stream to wait for.
    if (!is_on_stream()) {
      // Where somebody has taken the Future, its callbacks may wait for what this thread does next.
      if (timeout == kNoTimeout && !future_taken_ && operation_) run_operation_once_over();
      const bool done = Work::wait(ends_within(timeout) ? kNoTimeout : kNoTime);
      // complete() comes to the Future a moment later. Callers take it to be done by now, as Gloo's is; its
      // callbacks may still run.
      future_->wait();
      return done;
    }
    for (const auto& device : future_->devices()) {
      refuse_capture(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }
    use();
    if (timeout != kNoTimeout) Work::wait(ends_within(timeout) ? kNoTimeout : kNoTime);
    if (const auto error = exception()) std::rethrow_exception(error);
    block_stream();
    return true;
  }
  // Blocks the current streams, not the host.
  void block_stream() {
    use();
    enqueued_->wait();
    if (enqueued_->hasError()) std::rethrow_exception(enqueued_->exception_ptr());
  }
  bool is_on_stream() const { return enqueued_ != nullptr; }
  bool ends_unused() const { return ends_unused_; }
  // Blocks the host until complete(); does not throw. `uses`: it is the program that waits.
  std::exception_ptr wait_for_end(bool uses = true) {
    if (uses) {
      use();
      ends_within(kNoTimeout);
    }
    result_->wait();
    return exception();
  }
  bool isCompleted() override {
    ask();
    return Work::isCompleted();
  }
  void blockCurrentStream() override { wait(kNoTimeout); }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    require_own_process(mark_);
    ask();
    count_future();
    return future_of_end();
  }
  // For geocomm's own threads: their waiting is not the program's.
  c10::intrusive_ptr<c10::ivalue::Future> future_of_end() {
    future_taken_ = true;
    return future_;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    ask();
    count_future();
    future_taken_ = true;
    return result_;
  }
  std::uint64_t getSequencenumber() const override { return seq_; }

 private:
  // The program waits as long as this lives.
  class Waiting {
   public:
    explicit Waiting(collective::OpRecord* record) : record_(record) {
      if (record_ != nullptr) record_->wait_begins();
    }
    ~Waiting() {
      if (record_ != nullptr) record_->wait_ends();
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    collective::OpRecord* const record_;
  };

  void let_go() {
    try {
      ask();
    } catch (...) {  // of the driver's; the operation has failed, and says so
    }
    operation_ = nullptr;
  }
  // The program is to learn of its end by other ways than wait().
  void ask() {
    if (!ends_unused_) use();
  }
  void use() {
    if (!is_on_stream() || !operation_) return;
    const GilRelease released;  // a thread that is about it may need Python's lock to free a tensor
    operation_->use();
  }
  // Not of operations on streams: the device may have work while the host waits. Once for an operation, by
  // the first thread that takes its Future.
  void count_future() {
    std::lock_guard lock(exposed_mutex_);
    if (is_on_stream() || Work::isCompleted() || waiting_thread_ != 0) return;
    waiting_thread_ = exposed_->future_taken();
  }
  void stop_counting() {
    std::lock_guard lock(exposed_mutex_);
    if (waiting_thread_ != 0) exposed_->ended(std::exchange(waiting_thread_, 0));
  }
  // As Work::wait(), but the program's handlers of signals run meanwhile.
  bool ends_within(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return wait_with_signals(lock, cv_, core::Deadline::after(timeout == kNoTimeout ? kForever : timeout),
                             [&] { return completed_; });
  }
  void run_operation_once_over() const {
    operation_->run_once_over([](auto& lock, auto& changed, core::Deadline deadline, const auto& is_over) {
      wait_with_signals(lock, changed, deadline, is_over);
    });
  }

  static c10::intrusive_ptr<at::ivalue::Future> future_of(const Tensors& tensors) {
    std::vector<at::Device> devices;
    for (const auto& tensor : tensors) {
      if (!tensor.device().is_cpu() && devices.empty()) devices.push_back(tensor.device());
    }
    return c10::make_intrusive<at::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
  }

  static constexpr std::chrono::milliseconds kNoTime{1};  // 0 is kNoTimeout
  static constexpr std::chrono::hours kForever{24 * 365};

  const core::ProcessMark mark_;
  const std::uint64_t seq_;
  const Tensors outputs_;
  const c10::intrusive_ptr<at::ivalue::Future> future_;
  const c10::intrusive_ptr<at::ivalue::Future> result_;
  const std::shared_ptr<ExposedTime> exposed_;
  std::shared_ptr<collective::OpRecord> record_;  // nullptr: of several operations
  std::shared_ptr<Operation> operation_;
  c10::intrusive_ptr<at::ivalue::Future> enqueued_;  // on a stream: completes when all is enqueued
  bool ends_unused_ = true;
  std::atomic<bool> future_taken_{false};
  std::mutex exposed_mutex_;  // guards waiting_thread_
  pid_t waiting_thread_ = 0;  // that `exposed_` counts for this operation, 0: none
};

// How whoever ends an operation completes its Work. On a stream that is the program's alone to hold: letting
// go of it is one of its uses.
struct GeoWork::Ending {
  c10::weak_intrusive_ptr<GeoWork> work;
  c10::intrusive_ptr<at::ivalue::Future> result;
  c10::intrusive_ptr<GeoWork> held;  // not on a stream

  // What it completes where there is no Work any more is what the program may have kept of it.
  void complete(const c10::intrusive_ptr<GeoWork>& still_there, const std::exception_ptr& error) const {
    if (still_there) return still_there->complete(error);
    mark(*result, error);
  }
};
inline GeoWork::Ending GeoWork::ending_of(const c10::intrusive_ptr<GeoWork>& work) {
  return {c10::weak_intrusive_ptr<GeoWork>(work), work->result_,
          work->is_on_stream() ? c10::intrusive_ptr<GeoWork>() : work};
}

// Done when all of `works` are, and `then` has run if they have succeeded; fails with the first error among
// them. Takes geocomm's and inner backends' works alike, also null ones, which are done. Works on streams:
// they are used, and `then` is enqueued on a stream that waits for them, when `joined` is used. `joined` is
// new.
void join_works(const c10::intrusive_ptr<GeoWork>& joined, std::vector<WorkPtr> works,
                std::function<void()> then = nullptr);
WorkPtr join_works(int rank, c10d::OpType type, const char* title, std::vector<WorkPtr> works,
                   Tensors outputs, std::shared_ptr<ExposedTime> exposed,
                   std::function<void()> then = nullptr);

}  // namespace geocomm::binding
