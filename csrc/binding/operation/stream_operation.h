// An operation whose steps inside the site are enqueued on a stream, and the order in which those of one
// group are.
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
#include "binding/operation/host_lane.h"
#include "binding/operation/operation.h"
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

class EnqueueOrder;

// One operation on its stream:
//
//   issued:          pre · ready · pieces to the host
//   used:            (│arrived│ middle · made) · (│piece│ back) · │over│ post · finish
//   the host beside: the exchange, once `ready` has passed; opens the gates
//
// `middle`, which only some operations have, is what the exchange itself needs of the device once the data of
// the other sites has arrived: in one part or several, each behind a gate of its own. Gates close only when
// the operation is used, that is, when somebody is to wait for what is behind them (EnqueueOrder). Pieces, of
// operations that the host carries out, are copied one after the other, so that the exchange of one runs
// beside the copies of others. (Or the device makes their frames one after the other: `to_host` need not be a
// copy.) Nothing on the exchange's way waits for that: it opens the gates whether they are closed or not, and
// enqueues `middle` if nobody has by then.
//
//   stage                    called by                                            under
//   pre, ready, to_host      issue(): the thread that issues it                   order
//   exchange, its gates      the lane's thread (HostLane)                         nothing
//   middle                   the first of: enqueue_rest(), who waits for a lock;  middle
//                            the exchange, who does not
//   back, post,              enqueue_rest(): the first of who uses it, who uses   order (*), rest
//   when_enqueued, finish    a later collective, the end of the group, finish()
//   when_over, end           finish(): the lane's thread                          nothing
//
// Locks, in the order in which a thread takes them: EnqueueOrder::mutex_ (order), rest_mutex_ (rest),
// middle_mutex_ (middle) or enqueued_mutex_. (*) Not of InnerUse::Beside, nor from finish() of First.
class StreamOperation final : public Operation {
 public:
  // Runs its argument with the operation's stream as the current one.
  using Around = std::function<void(const std::function<void()>&)>;

  // The lease has a stream.
  static std::shared_ptr<StreamOperation> create(OperationId id, core::Deadline deadline,
                                                 std::shared_ptr<OperationGroup> group,
                                                 std::shared_ptr<StreamLease> lease, InnerUse inner,
                                                 Around around);
  ~StreamOperation() override { open(); }

  // Both before it is submitted; each runs once, with what has failed by then, or nullptr.
  // `enqueued`: with the stream current, once all is enqueued: whoever waits for the stream from then on
  // waits for the operation. Under locks of the lane: it runs nothing of the program's. `over`: the same once
  // the exchange is over as well, on a thread that may block.
  using Told = std::function<void(const std::exception_ptr& error)>;
  void when_enqueued(Told enqueued) { when_enqueued_ = std::move(enqueued); }
  void when_over(Told over) { when_over_ = std::move(over); }

  // The operation that this thread is enqueueing, else nullptr.
  static StreamOperation* current();

  InnerUse inner() const { return inner_; }
  void use() override;
  // Until end().
  StreamDriver::Stream stream() const { return lease_->stream(); }
  core::BufferPool& pinned() const { return lease_->device().pinned(); }

  // In stage `pre`, once. `enqueue` enqueues one part.
  struct Middle {
    std::uint32_t count = 0;
    std::function<void(std::uint32_t)> enqueue;
  };
  void set_middle(Middle middle);
  // In stage `pre`, once. `to_host` and `back` enqueue one piece.
  struct Pieces {
    std::uint32_t count = 0;
    std::function<void(std::uint32_t)> to_host;
    std::function<void(std::uint32_t)> back;  // nullptr: nothing goes back
  };
  void set_pieces(Pieces pieces);
  // In stage `pre`: what the exchange leaves is read as soon as a copy of it is enqueued, since it lies in
  // memory that is not pinned. So the rest comes after the exchange: who uses the operation waits for that on
  // the host.
  void wait_for_exchange() { waits_for_exchange_ = true; }
  // Whether it is too early to enqueue the rest.
  bool is_early() const { return waits_for_exchange_ && !is_over_.load(std::memory_order_acquire); }
  void wait_until_over() const {
    nap_until([this] { return is_over_.load(std::memory_order_acquire); });
  }
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
  bool is_made(std::uint32_t parts) const { return made_->given() >= parts; }
  bool is_finished() const { return finish_->is_given(); }

  // By the exchange. What the first `parts` of `middle` need has arrived.
  void open_arrived(std::uint32_t parts) { arrived_->open(parts); }
  // By the exchange, on a thread that may block: after open_arrived().
  void enqueue_middle_if_due(std::uint32_t parts);
  // By the exchange: so many pieces, from the first on, may go back.
  void open_pieces(std::uint32_t count) { pieces_made_->open(count); }
  // All is over.
  void open();

  // By threads that may block. Runs the exchange once `ready` has passed; then opens the gates. Gives up at
  // the deadline, or with what `group` says if that is an error.
  core::Status run(const std::function<core::Status()>& exchange, core::Deadline deadline,
                   const std::function<core::Status()>& group);
  core::Status wait_until_made(std::uint32_t parts, core::Deadline deadline);
  // Until the first `count` pieces are on the host; how many are.
  core::Result<std::uint32_t> wait_for_pieces(std::uint32_t count, core::Deadline deadline);
  // After run() and enqueue_rest(): waits until the device has passed `finish`. What the device or the
  // enqueueing failed with, if nothing before it did.
  void end();

 private:
  friend class StreamLane;

  StreamOperation(OperationId id, core::Deadline deadline, std::shared_ptr<OperationGroup> group,
                  std::shared_ptr<StreamLease> lease, InnerUse inner, Around around)
      : Operation(std::move(id), deadline, std::move(group)),
        lease_(std::move(lease)),
        inner_(inner),
        around_(std::move(around)) {}

  // Its other steps are enqueued.
  void run_pre() override {}
  void run_exchange() override;
  void run_post() override {}
  void finish() override;
  void run_stage(const std::function<void()>& stage);
  void signal(StreamSignal& signal);
  void tell(Told& told);
  void require(bool taken, const char* what) const;
  void enqueue_next_of_middle_locked();
  void let_go_of_words();
  bool has_failed() const { return error() != nullptr; }

  std::shared_ptr<StreamLease> lease_;
  const InnerUse inner_;
  const Around around_;
  std::shared_ptr<EnqueueOrder> order_;  // of its lane
  Told when_enqueued_;
  Told when_over_;
  Middle middle_;
  Pieces pieces_;
  std::unique_ptr<StreamSignal> pieces_there_;
  std::unique_ptr<StreamGate> pieces_made_;
  std::unique_ptr<StreamGate> arrived_;
  std::unique_ptr<StreamGate> over_;
  std::unique_ptr<StreamSignal> ready_;
  std::unique_ptr<StreamSignal> made_;
  std::unique_ptr<StreamSignal> finish_;
  bool waits_for_exchange_ = false;
  std::atomic<bool> is_over_{false};  // open() was called
  std::vector<std::shared_ptr<void>> held_;
  std::function<core::Status()> check_;
  std::mutex rest_mutex_;              // held while the rest is enqueued
  std::mutex middle_mutex_;            // held while `middle` is; guards middle_enqueued_
  std::uint32_t middle_enqueued_ = 0;  // parts
  std::atomic<bool> enqueued_{false};
  std::mutex enqueued_mutex_;  // held to set enqueued_
  std::condition_variable was_enqueued_;
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
  bool enqueue_unused(const std::shared_ptr<StreamOperation>& operation);

 private:
  using Collectives = std::deque<std::shared_ptr<StreamOperation>>;
  // Those up to `last`, or all for nullptr.
  void enqueue_until(const std::shared_ptr<StreamOperation>& last);
  void enqueue_locked(Collectives::iterator end);

  std::mutex mutex_;         // guards all below; held while something is enqueued
  Collectives collectives_;  // not used yet, in order of issue
};

// The lane of operations on streams. Thread-safe. Each has its stream until the device has passed all of it.
class StreamLane {
 public:
  // `host` runs the exchanges; it outlives the lane.
  explicit StreamLane(HostLane& host) : host_(host) {}

  void submit(const std::shared_ptr<StreamOperation>& operation, Runs runs);
  // Nobody will use them any more: the end of the group.
  void use_all() { order_->use_all(); }

 private:
  HostLane& host_;
  const std::shared_ptr<EnqueueOrder> order_ = std::make_shared<EnqueueOrder>();
};

}  // namespace geocomm::binding
