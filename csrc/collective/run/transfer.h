// One operation between the sites, in flight: what reductions and moves share. The calling thread opens it
// (channels, receives) and waits, or leaves the waiting to another; pool tasks make frames and use up those
// that came; the IO thread only does bookkeeping. Where there is only one frame to make or to use up, or
// little to do at all, the calling and the waiting thread do what else the pool does: waking others would
// take longer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collective/policy/rate_meter.h"
#include "collective/run/exchange.h"

namespace geocomm::collective {

// The number of an operation for messages: for point-to-point the counter alone.
std::int64_t shown_seq(const OpContext& context);
// Raw bytes of the whole operation, where all ranks know its elements.
inline std::uint64_t total_bytes(const OpContext& context) {
  return context.elements * core::size_of(context.dtype);
}

// What the operations of an Exchange share. Outlives the Exchange while channels still hold frames.
struct ExchangeShared {
  explicit ExchangeShared(ExchangeConfig settings) : config(std::move(settings)) {}
  const ExchangeConfig config;
  std::atomic<std::size_t> queued_bytes{0};  // given to channels, not yet taken by the kernel
  std::atomic<std::uint64_t> operations{0};
  std::atomic<std::uint64_t> raw_bytes_sent{0};
  std::atomic<std::uint64_t> wire_bytes_sent{0};
  std::atomic<std::uint64_t> raw_bytes_received{0};
  std::atomic<std::uint64_t> wire_bytes_received{0};
  std::atomic<std::uint64_t> relayed_bytes{0};
  std::atomic<std::uint64_t> encode_time{0};
  std::atomic<std::uint64_t> decode_time{0};
  RateMeter rates;
};

// Thread-safe. Lives in a shared_ptr: channels (through their sinks), pool tasks and the caller own it.
class Transfer : public std::enable_shared_from_this<Transfer> {
 public:
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Carry the operation out. begin() waits for no peer; end(), once, on any thread, blocks until it is done,
  // failed, or the deadline. When that returns, no task touches the caller's memory any more; memory that a
  // channel may still write to after a failure is owned by context.keep_alive.
  void begin();
  core::Status end();
  // Before begin(), and only for operations that submit no tasks of submit_finish_locked(). Runs once, when
  // end() would not have to wait for any peer: on any thread, also inside begin() or end(), with a lock of
  // the operation held, so it neither blocks nor calls the operation.
  void when_over(std::function<void()> notify) { when_over_ = std::move(notify); }
  // Ends the operation with `status`, unless it has an error or is done already. From any thread.
  void fail(core::Status status);

 protected:
  // What this rank and a peer send each other.
  struct Peer {
    int rank = 0;
    std::uint32_t sends = 0;     // chunks
    std::uint32_t receives = 0;  // chunks
    std::uint32_t owed = 0;      // of the receives: those for which the peer waits for nobody
    std::uint32_t sums = 0;      // of the receives: those for which it waits for `adds_up` alone
    std::string adds_up;         // names of ranks
    std::uint64_t send_descriptor = 0;
    std::uint64_t receive_descriptor = 0;
    std::shared_ptr<transport::Channel> channel;  // set by begin()
    // Guarded by mutex_.
    std::uint32_t arrived = 0;
    std::uint32_t owed_arrived = 0;
    std::uint32_t sums_arrived = 0;
    std::uint32_t queued = 0;  // chunks given to the channel, not yet taken by the kernel
    std::uint32_t given = 0;   // chunks given to the channel
    std::uint32_t taken = 0;   // of those, taken by the kernel
    bool mismatched = false;   // it runs another operation of this number
  };
  // Where a chunk goes.
  struct Target {
    std::size_t peer = 0;
    std::uint32_t number = 0;  // of the chunk, on the wire
  };
  // A chunk that came.
  struct Arrival {
    bool owed = true;  // counts among Peer::owed
    std::uint64_t raw_bytes = 0;
    std::uint64_t wire_bytes = 0;
    bool sum = false;  // counts among Peer::sums
  };

  Transfer(std::shared_ptr<ExchangeShared> shared, const OpContext& context);

  // To be called by the constructor of the derived class: `producers` jobs of produce(), and `finishes` calls
  // of finished() that the derived class makes itself.
  // `bytes`: raw, of all that is sent, received or reduced. `codec`: as it is spelt; empty: bytes are moved.
  void plan(std::vector<Peer> peers, std::size_t producers, std::size_t finishes, std::uint64_t bytes,
            std::string codec = {});

  // In order of `job`, several at once, in pool tasks, or in begin(): makes a frame and sends it.
  virtual core::Status produce(std::size_t job) = 0;
  // Once, before the first produce(): submits what waits for no frame. `mutex_` is not held.
  virtual void start() {}
  // On the IO thread, as ReceiveSink's; `mutex_` is not held.
  virtual core::Result<std::span<std::byte>> place(std::size_t peer, std::uint32_t chunk,
                                                   std::size_t chunk_bytes) = 0;
  // The chunk is where place() said. On the IO thread, with `mutex_` held.
  virtual Arrival on_arrival(std::size_t peer, std::uint32_t chunk) = 0;

  // Runs `task` in the pool, or on the thread that waits in end(), unless the operation has ended; its error
  // ends the operation, its success is one of the `finishes`. `mutex_` must be held.
  void submit_finish_locked(std::function<core::Status()> task);
  // One of the `finishes` is done. `mutex_` must be held.
  void finished_locked();
  // Runs `task`, which may block until context().deadline, on the thread that waits in end(); its error ends
  // the operation. `mutex_` must be held.
  void call_waiting_thread_locked(std::function<core::Status()> task);
  // Producers from `first` on wait until they are released. For constructors; `mutex_` must be held else.
  void hold_producers_locked(std::size_t first) { released_producers_ = first; }
  void release_producers_locked(std::size_t first);
  // Sends one chunk to each; `mutex_` must not be held.
  core::Status send(const std::vector<Target>& targets, const core::Buffer& payload, std::uint64_t raw_bytes);
  // The same for another rank.
  core::Status relay(const std::vector<Target>& targets, const core::Buffer& payload,
                     std::uint64_t raw_bytes);
  core::Status came_twice(std::size_t peer, std::uint32_t number) const;

  const std::vector<Peer>& peers() const { return peers_; }
  std::string peer_name(std::size_t peer) const;
  const ExchangeConfig& config() const { return shared_->config; }
  const OpContext& context() const { return context_; }
  core::BufferPool& buffers() const { return *shared_->config.buffers; }

  std::mutex mutex_;  // guards all mutable state here and in derived classes

 private:
  class Sink;
  class QueuedBytes;

  core::Status open();
  core::Status send_to(const Target& target, const core::Buffer& payload, std::uint64_t raw_bytes);
  bool may_produce_locked() const;
  void feed_locked();
  void run_producer(std::size_t job);
  core::Status timed_produce(std::size_t job);
  core::Status timed_finish(const std::function<core::Status()>& task);
  void produce_here(std::unique_lock<std::mutex>& lock);
  bool is_over_locked() const { return !error_.is_ok() || pending_ == 0; }
  void wake_locked();
  void over_locked();
  void end_task_locked();
  void fail_locked(core::Status status);
  void tell_mismatched(std::unique_lock<std::mutex>& lock);
  void cancel_all();
  core::Status timeout_status_locked() const;
  core::Status mismatch(std::size_t peer, std::uint64_t descriptor, std::uint32_t chunk_count);
  transport::OpKey key(int from, int to) const;

  const std::shared_ptr<ExchangeShared> shared_;
  const OpContext context_;  // without keep_alive
  const std::shared_ptr<OpRecord> record_;
  std::shared_ptr<void> keep_alive_;  // the caller's; shared with the sinks, let go by end()
  std::vector<Peer> peers_;
  std::string codec_name_;
  std::size_t producers_ = 0;
  bool produces_here_ = false;  // in begin(), not in the pool
  bool finishes_here_ = false;  // in end(), not in the pool

  std::condition_variable wake_;
  std::function<void()> when_over_;
  // On the IO thread, whoever waits is woken once the lock is free: he would only run into it.
  bool defers_wake_ = false;
  bool wake_deferred_ = false;
  core::Status error_;
  bool ended_ = false;  // end() has its result: no new tasks, no more changes of error_
  bool started_ = false;
  std::size_t pending_ = 0;  // producers and finishes that are not done
  struct WaitingThreadTask {
    std::function<core::Status()> run;
    bool finishes;  // its success is one of the `finishes`
  };
  std::deque<WaitingThreadTask> waiting_thread_tasks_;
  std::size_t next_producer_ = 0;
  std::size_t released_producers_ = ~std::size_t{0};
  std::size_t producing_ = 0;
  std::size_t tasks_ = 0;  // submitted and not ended
  std::size_t queued_bytes_ = 0;
};

}  // namespace geocomm::collective
