// What operations on a device need beside what torch gives: streams that nobody else uses, and words of
// memory by which a stream and the host wait for each other without a lock of the driver. Knows nothing of
// torch; cuda_streams.h has CUDA's driver, the tests have a model of one.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/buffer.h"
#include "core/deadline.h"
#include "core/deadline_timer.h"

namespace geocomm::binding {

// The driver of one device. Its functions are called with the device current, where they do not say
// otherwise.
class StreamDriver {
 public:
  using Stream = void*;  // cudaStream_t

  virtual ~StreamDriver() = default;
  // nullptr: the driver refused.
  virtual Stream create_stream() = 0;
  // Memory that the host and the device's streams read and write. nullptr: none is left.
  virtual std::byte* allocate_pinned(std::size_t bytes) = 0;
  // On any thread. Waits until the device has done all that it was given, maybe with the driver's lock.
  virtual void free_pinned(std::byte* memory) = 0;
  // The stream goes on once the word has reached `value`: their difference is not negative as a signed
  // number. False: the driver refused.
  virtual bool enqueue_wait(Stream stream, const std::uint32_t* word, std::uint32_t value) = 0;
  // What the stream did before is visible to whoever sees the value. False: the driver refused.
  virtual bool enqueue_write(Stream stream, std::uint32_t* word, std::uint32_t value) = 0;
  // Whether a kernel, anybody's, has failed, after which no stream goes on. May wait for the driver's lock.
  virtual bool has_failed(Stream stream) = 0;
};

// A stream, and the words of those who wait for each other on it. A word only ever grows, so it can serve
// again while the stream has not looked at it yet.
struct StreamSlot {
  static constexpr std::size_t kWords = 7;
  struct Word {
    std::uint32_t* address = nullptr;
    std::uint32_t next = 1;
  };

  StreamDriver::Stream stream = nullptr;
  std::array<Word, kWords> words;
  bool is_spoiled = false;  // the stream may still write to a word: it must not serve again
};

// The streams, words and pinned memory of one device, which are used again and again. Words and streams live
// as long as the process. Thread-safe.
class DeviceStreams {
 public:
  // Pinned memory that has lain idle for `keep` goes back.
  explicit DeviceStreams(StreamDriver& driver, std::chrono::milliseconds keep = std::chrono::seconds(10));
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  StreamDriver& driver() { return driver_; }
  // One with nothing on its stream. Where the driver has no more streams or no memory for words, waits for
  // one that another operation gives back. nullptr: none was by the deadline, or there is none at all.
  std::unique_ptr<StreamSlot> take_slot(core::Deadline deadline);
  void give_back(std::unique_ptr<StreamSlot> slot);
  // For the frames of an operation that has a stream. What lies idle is freed by a thread of its own, and
  // only while no stream is out: freeing waits for the device, which must stand at no gate then, and holds up
  // the streams that are asked for meanwhile.
  core::BufferPool& pinned();

 private:
  using Words = std::array<StreamSlot::Word, StreamSlot::kWords>;
  bool take_words(Words& words);
  std::unique_ptr<StreamSlot> make_slot();
  void free_idle();
  void free_idle_later_locked(std::chrono::milliseconds wait);

  StreamDriver& driver_;
  const std::chrono::milliseconds keep_;
  std::mutex words_mutex_;  // guards words_
  std::vector<Words> words_;
  core::BufferPool pinned_;
  std::mutex streams_mutex_;  // guards all below
  std::vector<std::unique_ptr<StreamSlot>> slots_;
  std::vector<std::unique_ptr<StreamSlot>> spoiled_;  // for good
  std::size_t streams_out_ = 0;
  std::condition_variable slot_back_;
  bool free_planned_ = false;  // the timer has it
  bool free_due_ = false;      // once no stream is out
  core::DeadlineTimer timer_;  // its thread is the first to go
};

// All that one operation needs of the driver until its end, taken before it begins: nothing of it can be
// lacking in its middle. What is on the stream never stands behind another operation's wait.
class StreamLease {
 public:
  StreamLease(DeviceStreams& device, core::Deadline deadline)
      : device_(device), slot_(device.take_slot(deadline)) {}
  ~StreamLease() {
    if (slot_) device_.give_back(std::move(slot_));
  }
  StreamLease(const StreamLease&) = delete;
  StreamLease& operator=(const StreamLease&) = delete;

  DeviceStreams& device() const { return device_; }
  StreamDriver::Stream stream() const { return slot_ ? slot_->stream : nullptr; }  // nullptr: there was none
  StreamSlot& slot() const { return *slot_; }

 private:
  DeviceStreams& device_;
  std::unique_ptr<StreamSlot> slot_;
};

// Which word of a slot a gate or a signal has; no two of an operation have the same.
enum class StreamWord : std::uint8_t { Ready, Over, Finish, Arrived, Made, PiecesThere, PiecesMade, Count };
static_assert(static_cast<std::size_t>(StreamWord::Count) == StreamSlot::kWords);

// Gates in a stream, one behind the other: the stream stops at each until the host has opened it. No kernel
// waits (the front end of the device polls the word), and opening needs no call of the driver. It may hold up
// more than its stream: what shares the hardware queue, which with CUDA_DEVICE_MAX_CONNECTIONS=1 is
// everything. So a gate is closed only when somebody waits for what is behind it (EnqueueOrder).
class StreamGate {
 public:
  // The lease outlives it, or let_go() comes before its end.
  StreamGate(const StreamLease& lease, StreamWord word, std::uint32_t gates = 1);

  // Stops the stream here until so many of them are open. False: the driver refused.
  bool enqueue(std::uint32_t gates = 1);
  // Thread-safe, also before enqueue(); opening twice is no error.
  void open() { open(gates_); }
  void open(std::uint32_t gates);
  // Opens all: no stream is left waiting. Nobody opens it at the same time.
  void let_go();
  ~StreamGate() { let_go(); }
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

 private:
  StreamDriver& driver_;
  const StreamDriver::Stream stream_;
  StreamSlot::Word* word_;  // `next`: the first gate is open once the word has reached it; nullptr: let go
  const std::uint32_t gates_;
};

// The other way round: the host learns how far a stream has come, in steps.
class StreamSignal {
 public:
  // As a gate.
  StreamSignal(const StreamLease& lease, StreamWord word, std::uint32_t steps = 1);

  // The next step. False: the driver refused.
  bool enqueue();
  // The host gives it where the stream will not.
  void give_unless_enqueued();
  // Thread-safe. What the stream did before these steps is visible then.
  std::uint32_t given() const;
  bool is_given() const { return given() == steps_; }
  // It keeps what is given. Nobody else uses it at the same time.
  void let_go();
  ~StreamSignal() { let_go(); }
  StreamSignal(const StreamSignal&) = delete;
  StreamSignal& operator=(const StreamSignal&) = delete;

 private:
  StreamDriver& driver_;
  StreamSlot& slot_;
  StreamSlot::Word* word_;  // `next`: with the first step; nullptr: let go
  const std::uint32_t steps_;
  std::uint32_t enqueued_ = 0;
  std::uint32_t given_at_end_ = 0;
};

}  // namespace geocomm::binding
