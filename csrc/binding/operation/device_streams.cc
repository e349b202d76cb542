#include "binding/operation/device_streams.h"

#include <algorithm>
#include <atomic>
#include <new>

namespace geocomm::binding {
namespace {

constexpr std::size_t kWordsAtOnce = 256;
constexpr std::size_t kStride = 64 / sizeof(std::uint32_t);  // a cache line each

// Never takes it back: several threads may open gates.
void raise(std::uint32_t* address, std::uint32_t value) {
  const std::atomic_ref<std::uint32_t> word(*address);
  std::uint32_t now = word.load(std::memory_order_relaxed);
  while (static_cast<std::int32_t>(value - now) > 0 &&
         !word.compare_exchange_weak(now, value, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

}  // namespace

DeviceStreams::DeviceStreams(StreamDriver& driver, std::chrono::milliseconds keep)
    : driver_(driver),
      keep_(keep),
      pinned_(~std::size_t{0}, {[&driver](std::size_t bytes) {
                                  std::byte* const memory = driver.allocate_pinned(bytes);
                                  if (memory == nullptr) throw std::bad_alloc();
                                  return memory;
                                },
                                [&driver](std::byte* memory, std::size_t) { driver.free_pinned(memory); }}) {}

core::BufferPool& DeviceStreams::pinned() {
  std::lock_guard lock(streams_mutex_);
  if (!free_planned_ && !free_due_) free_idle_later_locked(keep_);
  return pinned_;
}

void DeviceStreams::free_idle_later_locked(std::chrono::milliseconds wait) {
  // Where the system has no thread for it, the next operation asks again.
  free_planned_ = timer_.add(core::Deadline::after(wait), [this] { free_idle(); }).is_ok();
}

void DeviceStreams::free_idle() {
  std::lock_guard lock(streams_mutex_);
  free_planned_ = false;
  free_due_ = streams_out_ > 0;
  if (free_due_) return;
  pinned_.free_idle(keep_);
  if (pinned_.usage().held_bytes > 0) free_idle_later_locked(keep_);
}

DeviceStreams::Word DeviceStreams::take_word() {
  std::lock_guard lock(words_mutex_);
  if (words_.empty()) {
    constexpr std::size_t kWords = kWordsAtOnce * kStride;
    auto* const first =
        reinterpret_cast<std::uint32_t*>(driver_.allocate_pinned(kWords * sizeof(std::uint32_t)));
    if (first == nullptr) return {};
    std::fill_n(first, kWords, 0u);
    for (std::size_t i = 0; i < kWordsAtOnce; ++i) words_.push_back({first + i * kStride});
  }
  const Word word = words_.back();
  words_.pop_back();
  return word;
}

void DeviceStreams::give_back(Word word) {
  std::lock_guard lock(words_mutex_);
  words_.push_back({word.address, word.next + 1});
}

// The one used last comes first: torch's allocator keeps memory for each stream.
StreamDriver::Stream DeviceStreams::take_stream() {
  {
    std::lock_guard lock(streams_mutex_);
    ++streams_out_;
    if (!streams_.empty()) {
      const StreamDriver::Stream stream = streams_.back();
      streams_.pop_back();
      return stream;
    }
  }
  const StreamDriver::Stream created = driver_.create_stream();
  if (created == nullptr) give_back(created);
  return created;
}

void DeviceStreams::give_back(StreamDriver::Stream stream) {
  std::lock_guard lock(streams_mutex_);
  if (stream != nullptr) streams_.push_back(stream);
  if (--streams_out_ > 0 || !free_due_) return;
  free_due_ = false;
  free_idle_later_locked(std::chrono::milliseconds(0));
}

std::unique_ptr<StreamGate> StreamGate::create(DeviceStreams& device, std::uint32_t gates) {
  const auto word = device.take_word();
  if (word.address == nullptr) return nullptr;
  return std::unique_ptr<StreamGate>(new StreamGate(device, word, gates));
}

bool StreamGate::enqueue(StreamDriver::Stream stream, std::uint32_t gates) {
  return device_.driver().enqueue_wait(stream, word_.address, word_.next + gates - 1);
}

// What the device is to see behind the gate was written before.
void StreamGate::open(std::uint32_t gates) {
  raise(word_.address, word_.next + gates - 1);
}

StreamGate::~StreamGate() {
  open();
  device_.give_back({word_.address, word_.next + gates_ - 1});
}

std::unique_ptr<StreamSignal> StreamSignal::create(DeviceStreams& device, std::uint32_t steps) {
  const auto word = device.take_word();
  if (word.address == nullptr) return nullptr;
  return std::unique_ptr<StreamSignal>(new StreamSignal(device, word, steps));
}

bool StreamSignal::enqueue(StreamDriver::Stream stream) {
  const bool taken = device_.driver().enqueue_write(stream, word_.address, word_.next + enqueued_);
  if (taken) ++enqueued_;
  return taken;
}

void StreamSignal::give_unless_enqueued() {
  if (enqueued_ == 0) raise(word_.address, word_.next + steps_ - 1);
}

std::uint32_t StreamSignal::given() const {
  const auto now = std::atomic_ref<std::uint32_t>(*word_.address).load(std::memory_order_acquire);
  return static_cast<std::uint32_t>(std::max(0, static_cast<std::int32_t>(now - (word_.next - 1))));
}

// A word that a stream has yet to write must not serve again: the late write would take it back.
StreamSignal::~StreamSignal() {
  if (given() >= enqueued_) device_.give_back({word_.address, word_.next + steps_ - 1});
}

}  // namespace geocomm::binding
