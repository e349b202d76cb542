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

#include "binding/device/device_side.h"
#include "binding/operation/exposed_time.h"
#include "binding/torch/comm_error.h"
#include "binding/torch/python_thread.h"
#include "binding/torch/torch_prelude.h"
#include "collective/run/op_log.h"
#include "core/deadline.h"

namespace geocomm::binding {

class GeoWork : public c10d::Work {
 public:
  // `outputs` is the Future's value (List[Tensor]). `devices`: the devices of the outputs, CPU left out.
  GeoWork(int rank, c10d::OpType type, const char* title, std::uint64_t seq, Tensors inputs, Tensors outputs,
          std::shared_ptr<ExposedTime> exposed)
      : Work(rank, type, title, inputs),
        seq_(seq),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<at::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                        accelerators_of(outputs_))),
        result_(c10::make_intrusive<at::ivalue::Future>(c10::IntType::get())),
        exposed_(std::move(exposed)) {}

  // For an operation whose stages are enqueued on a stream (StreamOperation); before the work is handed out.
  // `use` enqueues what is left of it and completes the Future; it is called, maybe often, when somebody is
  // to wait for the operation, takes its Future, or lets go of the work. Who waits for the Future makes a
  // stream wait then, as with NCCL's. An error that comes later is thrown by wait() if it is known by then,
  // and by the next operation. `ends_unused`: it completes also if nobody uses it.
  void set_on_stream(std::function<void()> use, bool ends_unused) {
    use_ = std::move(use);
    ends_unused_ = ends_unused;
  }
  ~GeoWork() override { let_go(); }
  // In place of the destructor, which comes later where there are weak references.
  void release_resources() override { let_go(); }
  // What `use` does last, with the stream current: it needs no work.
  std::function<void()> completes_future() const {
    return [future = future_, outputs = outputs_] { future->markCompleted(at::IValue(outputs)); };
  }
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

  // For an operation whose last step, `end`, calls complete(), and would wait for peers, up to `deadline`, if
  // it is run before over(): whoever waits for the work runs it, so that no other thread has to wake him;
  // where nobody waits, or somebody has taken the Future, whose callbacks may wait for what the waiting
  // thread does next, a thread of the executor does once it is over. Before the work is handed out.
  void set_end(std::function<void(GeoWork&)> end, core::Deadline deadline) {
    bool over = false;
    {
      std::lock_guard lock(end_mutex_);
      end_ = std::move(end);
      end_deadline_ = deadline;
      over = over_;
    }
    if (over) run_end();
  }
  // The last step would not wait any more. From any thread, under any lock, also before set_end(). Takes the
  // caller's share of the work, so that the last one, with which Python's objects may go, is not let go on
  // the IO thread.
  static void over(c10::intrusive_ptr<GeoWork> work);

  bool wait(std::chrono::milliseconds timeout) override {
    require_own_process(mark_);
    const ExposedTime::Wait counted(*exposed_);
    const Waiting recorded(record_.get());
    // Else the stages have synchronised their stream when the work completes: nothing is left for the
    // caller's stream to wait for.
    if (!is_on_stream()) {
      if (timeout == kNoTimeout && !future_taken_) run_end_once_over();
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
    future_->wait();  // blocks the current streams, not the host
    return true;
  }
  bool is_on_stream() const { return use_ != nullptr; }
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
    if (!ends_unused_) use();
    return Work::isCompleted();
  }
  void blockCurrentStream() override { wait(kNoTimeout); }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    require_own_process(mark_);
    use();
    count_future();
    return future_of_end();
  }
  // For geocomm's own threads: their waiting is not the program's.
  c10::intrusive_ptr<c10::ivalue::Future> future_of_end() {
    future_taken_ = true;
    return future_;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    use();
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
      use();
    } catch (...) {  // of the driver's; the operation has failed, and says so
    }
    use_ = nullptr;
  }
  void use() {
    if (!use_) return;
    const GilRelease released;  // a thread that is about it may need Python's lock to free a tensor
    use_();
  }
  // The host does not wait for operations on streams. Once for an operation, by the first thread that takes
  // its Future.
  void count_future() {
    std::lock_guard lock(end_mutex_);
    if (is_on_stream() || Work::isCompleted() || waiting_thread_ != 0) return;
    waiting_thread_ = exposed_->future_taken();
  }
  void stop_counting() {
    std::lock_guard lock(end_mutex_);
    if (waiting_thread_ != 0) exposed_->ended(std::exchange(waiting_thread_, 0));
  }
  // As Work::wait(), but the program's handlers of signals run meanwhile.
  bool ends_within(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return wait_with_signals(lock, cv_, core::Deadline::after(timeout == kNoTimeout ? kForever : timeout),
                             [&] { return completed_; });
  }
  // On a thread that waits for the work. Does nothing if another thread has begun it.
  void run_end_once_over() {
    c10::intrusive_ptr<GeoWork> share;
    {
      std::unique_lock lock(end_mutex_);
      if (!end_) return;
      ++waiting_for_end_;
      try {
        wait_with_signals(lock, over_changed_, end_deadline_, [&] { return over_ || !end_; });
      } catch (...) {
        if (--waiting_for_end_ == 0 && share_of_over_) over_unattended_locked();
        throw;
      }
      --waiting_for_end_;
      share = std::move(share_of_over_);
    }
    run_end();
  }
  // Nobody waits: a thread of the executor runs it, unless another has begun it.
  void over_unattended_locked();
  // Does nothing if another thread has begun it.
  void run_end() {
    std::function<void(GeoWork&)> end;
    {
      std::lock_guard lock(end_mutex_);
      end = std::exchange(end_, nullptr);
      end_begun_ = end_begun_ || end;
    }
    if (end) end(*this);
  }

  static std::vector<at::Device> accelerators_of(const Tensors& tensors) {
    std::vector<at::Device> devices;
    for (const auto& tensor : tensors) {
      if (!tensor.device().is_cpu()) return {tensor.device()};
    }
    return devices;
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
  std::function<void()> use_;                     // nullptr: not on a stream
  bool ends_unused_ = true;
  std::atomic<bool> future_taken_{false};
  std::mutex end_mutex_;  // guards all below
  std::function<void(GeoWork&)> end_;
  core::Deadline end_deadline_ = core::Deadline::after({});
  bool end_begun_ = false;
  bool over_ = false;
  std::condition_variable over_changed_;
  int waiting_for_end_ = 0;                    // threads
  c10::intrusive_ptr<GeoWork> share_of_over_;  // for the first of them
  pid_t waiting_thread_ = 0;                   // that `exposed_` counts for this operation, 0: none
};

// How whoever ends an operation on a stream completes its Work, which is the program's alone to hold: letting
// go of it is one of its uses.
struct GeoWork::Ending {
  c10::weak_intrusive_ptr<GeoWork> work;
  c10::intrusive_ptr<at::ivalue::Future> result;

  // Whether there was a Work still. What it completes otherwise is what the program may have kept of it.
  bool complete(const std::exception_ptr& error) const {
    if (const auto held = work.lock()) {
      held->complete(error);
      return true;
    }
    mark(*result, error);
    return false;
  }
};
inline GeoWork::Ending GeoWork::ending_of(const c10::intrusive_ptr<GeoWork>& work) {
  return {c10::weak_intrusive_ptr<GeoWork>(work), work->result_};
}

// Done when all of `works` are; fails with the first error among them. Takes geocomm's and inner backends'
// works alike.
WorkPtr join_works(int rank, c10d::OpType type, const char* title, std::vector<WorkPtr> works,
                   Tensors outputs, std::shared_ptr<ExposedTime> exposed);

// Completes `joined` after all of `works`, which it also takes, and after `then`, if they succeeded. Works on
// streams: they are used, and `then` is enqueued on a stream that waits for them, when `joined` is used.
void complete_after(const c10::intrusive_ptr<GeoWork>& joined, std::vector<WorkPtr> works,
                    std::function<void()> then);

}  // namespace geocomm::binding
