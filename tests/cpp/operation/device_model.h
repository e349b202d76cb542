// A device as far as the order of its work goes: streams share hardware queues, whose heads hold up what is
// behind them. It moves only when told to.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "binding/operation/device_streams.h"

namespace geocomm::binding {

class DeviceModel final : public StreamDriver {
 public:
  using Event = std::shared_ptr<const bool>;
  using Done = std::function<bool()>;

  // Streams take the queues by turns. One queue: CUDA_DEVICE_MAX_CONNECTIONS=1.
  explicit DeviceModel(std::size_t queues) : queues_(queues) {}
  ~DeviceModel() override {
    for (const auto& [memory, bytes] : pinned_) core::heap_memory().free(memory, bytes);
  }
  DeviceModel(const DeviceModel&) = delete;
  DeviceModel& operator=(const DeviceModel&) = delete;

  Stream create_stream() override {
    if (refuses_memory()) return nullptr;
    std::lock_guard lock(mutex_);
    if (streams_.size() >= most_streams) return nullptr;
    streams_.push_back(std::make_unique<FakeStream>(FakeStream{streams_.size() % queues_.size(), {}}));
    return streams_.back().get();
  }
  std::byte* allocate_pinned(std::size_t bytes) override {
    if (refuses_memory()) return nullptr;
    std::lock_guard lock(mutex_);
    if (pinned_bytes_ + bytes > most_pinned) return nullptr;
    auto* const memory = core::heap_memory().allocate(bytes);
    pinned_.emplace(memory, bytes);
    pinned_bytes_ += bytes;
    return memory;
  }
  // The device holds up whoever frees, as long as it has work.
  void free_pinned(std::byte* memory) override {
    if (!is_idle()) ++freed_under_work;
    std::lock_guard lock(mutex_);
    pinned_bytes_ -= pinned_.at(memory);
    core::heap_memory().free(memory, pinned_.extract(memory).mapped());
  }
  std::size_t pinned_bytes() {
    std::lock_guard lock(mutex_);
    return pinned_bytes_;
  }
  bool enqueue_wait(Stream stream, const std::uint32_t* word, std::uint32_t value) override {
    if (refuses() || refuses_waits) return false;
    push(stream, {nullptr, [word, value] { return has_reached(*word, value); }, nullptr, nullptr});
    return true;
  }
  bool enqueue_write(Stream stream, std::uint32_t* word, std::uint32_t value) override {
    if (refuses() || refuses_writes) return false;
    push(stream, {nullptr, nullptr, [word, value] { atomic(*word).store(value, std::memory_order_release); },
                  nullptr});
    return true;
  }
  bool has_failed(Stream) override { return refuses() || is_broken; }

  // A kernel: `run` when it begins, `done` says whether it has ended. The queue goes on meanwhile, its stream
  // does not.
  void launch(Stream stream, std::function<void()> run, Done done = nullptr) {
    push(stream, {nullptr, nullptr, std::move(run), std::move(done)});
  }
  Event record(Stream stream) {
    const auto passed = std::make_shared<bool>(false);
    push(stream, {nullptr, nullptr, [passed] { *passed = true; }, nullptr});
    return passed;
  }
  void wait(Stream stream, Event event) {
    push(stream, {nullptr, [event = std::move(event)] { return *event; }, nullptr, nullptr});
  }

  // Does all that can be done. Whether that was anything.
  bool advance() {
    std::lock_guard lock(mutex_);
    bool moved = false;
    for (auto& queue : queues_) {
      while (!queue.empty()) {
        Entry& head = queue.front();
        if (head.stream->running && !head.stream->running()) break;
        head.stream->running = nullptr;
        if (head.condition && !head.condition()) break;
        if (head.run) head.run();
        head.stream->running = std::move(head.done);
        queue.pop_front();
        moved = true;
      }
    }
    return moved;
  }
  bool is_idle() {
    std::lock_guard lock(mutex_);
    for (const auto& queue : queues_) {
      if (!queue.empty()) return false;
    }
    return true;
  }

  // Of the driver's calls, the one after so many more is refused, and it alone. Below 0: none is.
  std::atomic<int> calls_until_refusal = -1;
  bool refuses_waits = false;
  bool refuses_writes = false;
  bool is_broken = false;
  std::atomic<std::size_t> most_pinned = ~std::size_t{0};
  std::atomic<std::size_t> most_streams = ~std::size_t{0};
  std::atomic<int> freed_under_work = 0;  // which may never end: a gate may be what it stands at

  // One call of the driver, of whatever kind: whether it is the one that is refused.
  bool refuses() { return calls_until_refusal >= 0 && calls_until_refusal-- == 0; }
  // That call asked for a stream or for memory.
  std::atomic<bool> refused_memory = false;

 private:
  bool refuses_memory() {
    const bool refused = refuses();
    if (refused) refused_memory = true;
    return refused;
  }

  struct FakeStream {
    std::size_t queue;
    Done running;  // nullptr: nothing is
  };
  struct Entry {
    FakeStream* stream;
    std::function<bool()> condition;
    std::function<void()> run;
    Done done;
  };

  static std::atomic_ref<std::uint32_t> atomic(std::uint32_t& word) {
    return std::atomic_ref<std::uint32_t>(word);
  }
  static bool has_reached(const std::uint32_t& word, std::uint32_t value) {
    const auto now = atomic(const_cast<std::uint32_t&>(word)).load(std::memory_order_acquire);
    return static_cast<std::int32_t>(now - value) >= 0;
  }
  void push(Stream stream, Entry entry) {
    std::lock_guard lock(mutex_);
    entry.stream = static_cast<FakeStream*>(stream);
    queues_[entry.stream->queue].push_back(std::move(entry));
  }

  std::mutex mutex_;  // guards all below
  std::vector<std::deque<Entry>> queues_;
  std::vector<std::unique_ptr<FakeStream>> streams_;
  std::map<std::byte*, std::size_t> pinned_;
  std::size_t pinned_bytes_ = 0;
};

}  // namespace geocomm::binding
