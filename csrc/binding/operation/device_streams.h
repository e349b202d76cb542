// What operations on a device need beside what torch gives: streams that nobody else uses, and words of
// memory by which a stream and the host wait for each other without a lock of the driver. Knows nothing of
// torch; cuda_streams.h has CUDA's driver, the tests have a model of one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/buffer.h"
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

// The words, streams and pinned memory of one device, which are used again and again. Words and streams live
// as long as the process. Thread-safe.
class DeviceStreams {
 public:
  // A word only ever grows, so it can serve again while a stream has not looked at it yet.
  struct Word {
    std::uint32_t* address = nullptr;
    std::uint32_t next = 1;
  };

  // Pinned memory that has lain idle for `keep` goes back.
  explicit DeviceStreams(StreamDriver& driver, std::chrono::milliseconds keep = std::chrono::seconds(10));
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  StreamDriver& driver() { return driver_; }
  // nullptr address: no memory is left.
  Word take_word();
  void give_back(Word word);
  // A stream with nothing on it. nullptr: the driver refused.
  StreamDriver::Stream take_stream();
  void give_back(StreamDriver::Stream stream);
  // For the frames of an operation that has a stream. What lies idle is freed by a thread of its own, and
  // only while no stream is out: freeing waits for the device, which must stand at no gate then, and holds up
  // the streams that are asked for meanwhile.
  core::BufferPool& pinned();

 private:
  void free_idle();
  void free_idle_later_locked(std::chrono::milliseconds wait);

  StreamDriver& driver_;
  const std::chrono::milliseconds keep_;
  std::mutex words_mutex_;  // guards words_
  std::vector<Word> words_;
  core::BufferPool pinned_;
  std::mutex streams_mutex_;  // guards all below
  std::vector<StreamDriver::Stream> streams_;
  std::size_t streams_out_ = 0;
  bool free_planned_ = false;  // the timer has it
  bool free_due_ = false;      // once no stream is out
  core::DeadlineTimer timer_;  // its thread is the first to go
};

// A stream for one operation: what is on it never stands behind another operation's wait.
class StreamLease {
 public:
  explicit StreamLease(DeviceStreams& device) : device_(device), stream_(device.take_stream()) {}
  ~StreamLease() {
    if (stream_ != nullptr) device_.give_back(stream_);
  }
  StreamLease(const StreamLease&) = delete;
  StreamLease& operator=(const StreamLease&) = delete;

  DeviceStreams& device() const { return device_; }
  StreamDriver::Stream stream() const { return stream_; }  // nullptr: the driver refused

 private:
  DeviceStreams& device_;
  const StreamDriver::Stream stream_;
};

// Gates in a stream, one behind the other: the stream stops at each until the host has opened it. No kernel
// waits (the front end of the device polls the word), and opening needs no call of the driver. It may hold up
// more than its stream: what shares the hardware queue, which with CUDA_DEVICE_MAX_CONNECTIONS=1 is
// everything. So a gate is closed only when somebody waits for what is behind it (EnqueueOrder).
class StreamGate {
 public:
  // nullptr: no memory for words is left.
  static std::unique_ptr<StreamGate> create(DeviceStreams& device, std::uint32_t gates = 1);

  // Stops the stream here until so many of them are open. False: the driver refused.
  bool enqueue(StreamDriver::Stream stream, std::uint32_t gates = 1);
  // Thread-safe, also before enqueue(); opening twice is no error. The destructor opens all: no stream is
  // left waiting.
  void open() { open(gates_); }
  void open(std::uint32_t gates);
  ~StreamGate();
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

 private:
  StreamGate(DeviceStreams& device, DeviceStreams::Word word, std::uint32_t gates)
      : device_(device), word_(word), gates_(gates) {}

  DeviceStreams& device_;
  const DeviceStreams::Word word_;  // `next`: the first gate is open once the word has reached it
  const std::uint32_t gates_;
};

// The other way round: the host learns how far a stream has come, in steps.
class StreamSignal {
 public:
  // nullptr: no memory for words is left.
  static std::unique_ptr<StreamSignal> create(DeviceStreams& device, std::uint32_t steps = 1);

  // The next step. False: the driver refused.
  bool enqueue(StreamDriver::Stream stream);
  // The host gives it where the stream will not.
  void give_unless_enqueued();
  // Thread-safe. What the stream did before these steps is visible then.
  std::uint32_t given() const;
  bool is_given() const { return given() == steps_; }
  ~StreamSignal();
  StreamSignal(const StreamSignal&) = delete;
  StreamSignal& operator=(const StreamSignal&) = delete;

 private:
  StreamSignal(DeviceStreams& device, DeviceStreams::Word word, std::uint32_t steps)
      : device_(device), word_(word), steps_(steps) {}

  DeviceStreams& device_;
  const DeviceStreams::Word word_;  // `next`: with the first step
  const std::uint32_t steps_;
  std::uint32_t enqueued_ = 0;
};

}  // namespace geocomm::binding
