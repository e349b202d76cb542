// An operation whose stages are enqueued on a stream, and the order in which those of one group are. Knows
// nothing of torch.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "binding/operation/device_streams.h"
#include "core/deadline.h"
#include "core/status.h"

namespace geocomm::binding {

// Neither spins nor holds a lock of the driver.
template <typename F>
void nap_until(F&& is_done) {
  constexpr std::chrono::microseconds kFirstNap{20};
  constexpr std::chrono::microseconds kLongestNap{500};
  for (auto nap = kFirstNap; !is_done(); nap = std::min(nap * 2, kLongestNap)) {
    std::this_thread::sleep_for(nap);
  }
}

// How operations of a group share its inner backend.
enum class InnerUse {
  // No stage calls it, and other operations need not come first: point-to-point messages.
  Beside,
  // A collective; its last stage does not call it.
  First,
  // The last stage calls it: the ranks of the site must enqueue those in one order, between the same calls of
  // whatever else they all take part in. So only the program's own calls may say when.
  FirstAndLast,
};

// What an operation enqueues; each may be empty but for `around`. Each is freed once it has run.
struct StreamStages {
  // Runs its argument with the operation's stream as the current one. Must not throw.
  std::function<void(const std::function<void()>&)> around;
  std::function<void()> pre;
  std::function<void()> post;
  // Once all is enqueued: whoever waits for the stream from then on waits for the operation.
  std::function<void()> enqueued;
  // With what one of the stages threw.
  std::function<void(std::exception_ptr)> failed;
  std::function<std::exception_ptr(core::Status)> to_exception;
};

// One operation on its stream:
//
//   issued:          pre · ready
//   used:            │arrived│ middle · made · │over│ post · finish
//   the host beside: the exchange, once `ready` has passed; opens the gates
//
// `middle`, which only some operations have, is what the exchange itself needs of the device once the data of
// the other sites has arrived. Gates close only when the operation is used, that is, when somebody is to wait
// for what is behind them (EnqueueOrder). Nothing on the exchange's way waits for that: it opens the gates
// whether they are closed or not, and enqueues `middle` if nobody has by then.
class StreamOperation {
 public:
  // nullptr: the driver has no stream or no memory left.
  static std::shared_ptr<StreamOperation> create(std::shared_ptr<StreamLease> lease, InnerUse inner);
  // What it enqueues. Before anything else.
  void set_stages(StreamStages stages) { stages_ = std::move(stages); }
  ~StreamOperation() { open(); }
  StreamOperation(const StreamOperation&) = delete;
  StreamOperation& operator=(const StreamOperation&) = delete;

  // The operation that this thread is enqueueing, else nullptr.
  static StreamOperation* current();

  InnerUse inner() const { return inner_; }
  StreamDriver::Stream stream() const { return lease_->stream(); }  // until end()

  // In stage `pre`.
  void set_middle(std::function<void()> middle) { middle_ = std::move(middle); }
  // `memory` is let go once the device has passed `finish`; `check` is asked then whether what the device did
  // was sound.
  void hold(std::shared_ptr<void> memory) { held_.push_back(std::move(memory)); }
  void check_at_end(std::function<core::Status()> check) { check_ = std::move(check); }

  // `pre` and `ready`, once, by whoever issues it.
  void enqueue_first();
  // The rest, unless that is done; waits for a thread that is about it.
  void enqueue_rest();
  bool is_enqueued() const { return enqueued_.load(std::memory_order_acquire); }
  // Whether the rest was enqueued by the deadline.
  bool wait_until_enqueued(core::Deadline deadline);

  // Of the device.
  bool is_ready() const { return ready_->is_given(); }
  bool is_made() const { return made_->is_given(); }
  bool is_finished() const { return finish_->is_given(); }

  // By the exchange. Data of the other sites has arrived.
  void open_arrived() { arrived_->open(); }
  // By the exchange, on a thread that may block: after open_arrived().
  void enqueue_middle_if_due();
  // All is over.
  void open();

  // By threads that may block. Runs the exchange once `ready` has passed; then opens the gates. Gives up at
  // the deadline, or with what `group` says if that is an error.
  core::Status run(const std::function<core::Status()>& exchange, core::Deadline deadline,
                   const std::function<core::Status()>& group);
  core::Status wait_until_made(core::Deadline deadline);
  // After run() and enqueue_rest(): waits until the device has passed `finish`. What the device or the
  // enqueueing failed with, if `failure` is nothing.
  std::exception_ptr end(std::exception_ptr failure);

 private:
  StreamOperation(std::shared_ptr<StreamLease> lease, InnerUse inner)
      : lease_(std::move(lease)), inner_(inner) {}

  void run_stage(const std::function<void()>& stage);
  void require(bool taken, const char* what) const;
  void enqueue_middle_locked();
  bool has_failed() const;

  std::shared_ptr<StreamLease> lease_;
  const InnerUse inner_;
  StreamStages stages_;
  std::function<void()> middle_;
  std::unique_ptr<StreamGate> arrived_;
  std::unique_ptr<StreamGate> over_;
  std::unique_ptr<StreamSignal> ready_;
  std::unique_ptr<StreamSignal> made_;
  std::unique_ptr<StreamSignal> finish_;
  std::vector<std::shared_ptr<void>> held_;
  std::function<core::Status()> check_;
  std::mutex rest_mutex_;    // held while the rest is enqueued
  std::mutex middle_mutex_;  // held while `middle` is; guards middle_enqueued_
  bool middle_enqueued_ = false;
  std::atomic<bool> enqueued_{false};
  mutable std::mutex mutex_;  // guards all below; the others are taken before it
  std::condition_variable changed_;
  std::exception_ptr error_;
};

// When the operations of one group are enqueued. Thread-safe; no thread of an exchange waits for it.
//
// A gate may stop all streams, so it is closed as if the host waited there, as Gloo's wait() does: a program
// that cannot hang with those cannot hang here. An operation is *used* when a thread of the program waits for
// it, takes its Future, lets go of it, or leaves the group.
class EnqueueOrder {
 public:
  // Enqueues the first part, with none of the group's in between, and calls `submit`, which hands the
  // exchange to its thread.
  void issue(const std::shared_ptr<StreamOperation>& operation, const std::function<void()>& submit);
  // Enqueues the rest of it, behind that of collectives that were issued before.
  void use(const std::shared_ptr<StreamOperation>& operation);
  void use_all();
  // Once the exchange is over: an operation whose last stage is nobody else's concern is enqueued without
  // anyone's use, behind gates that are open. Whether that was done.
  bool settle(const std::shared_ptr<StreamOperation>& operation);

 private:
  using Collectives = std::deque<std::shared_ptr<StreamOperation>>;
  void enqueue_locked(Collectives::iterator end);

  std::mutex mutex_;         // guards all below; held while something is enqueued
  Collectives collectives_;  // not used yet, in order of issue
};

}  // namespace geocomm::binding
