#include "binding/operation/device_streams.h"

#include <algorithm>
#include <atomic>
#include <new>

namespace geocomm::binding {
namespace {

constexpr std::size_t kSlotsAtOnce = 32;
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

bool DeviceStreams::take_words(Words& words) {
  std::lock_guard lock(words_mutex_);
  if (words_.empty()) {
    constexpr std::size_t kWords = kSlotsAtOnce * StreamSlot::kWords * kStride;
    auto* const first =
        reinterpret_cast<std::uint32_t*>(driver_.allocate_pinned(kWords * sizeof(std::uint32_t)));
    if (first == nullptr) return false;
    std::fill_n(first, kWords, 0u);
    for (std::size_t i = 0; i < kSlotsAtOnce; ++i) {
      Words& slot = words_.emplace_back();
      for (std::size_t w = 0; w < slot.size(); ++w) slot[w].address = first + (i * slot.size() + w) * kStride;
    }
  }
  words = words_.back();
  words_.pop_back();
  return true;
}

std::unique_ptr<StreamSlot> DeviceStreams::make_slot() {
  auto slot = std::make_unique<StreamSlot>();
  if (!take_words(slot->words)) return nullptr;
  slot->stream = driver_.create_stream();
  if (slot->stream != nullptr) return slot;
  std::lock_guard lock(words_mutex_);
  words_.push_back(slot->words);
  return nullptr;
}

// The one used last comes first: torch's allocator keeps memory for each stream.
std::unique_ptr<StreamSlot> DeviceStreams::take_slot(core::Deadline deadline) {
  const auto take_idle = [this] {
    auto slot = std::move(slots_.back());
    slots_.pop_back();
    return slot;
  };
  {
    std::lock_guard lock(streams_mutex_);
    ++streams_out_;
    if (!slots_.empty()) return take_idle();
  }
  if (auto made = make_slot()) return made;
  std::unique_lock lock(streams_mutex_);
  --streams_out_;
  slot_back_.notify_all();
  slot_back_.wait_until(lock, deadline.when(), [this] { return !slots_.empty() || streams_out_ == 0; });
  if (slots_.empty()) return nullptr;
  ++streams_out_;
  return take_idle();
}

void DeviceStreams::give_back(std::unique_ptr<StreamSlot> slot) {
  std::lock_guard lock(streams_mutex_);
  (slot->is_spoiled ? spoiled_ : slots_).push_back(std::move(slot));
  --streams_out_;
  slot_back_.notify_all();
  if (streams_out_ > 0 || !free_due_) return;
  free_due_ = false;
  free_idle_later_locked(std::chrono::milliseconds(0));
}

StreamGate::StreamGate(const StreamLease& lease, StreamWord word, std::uint32_t gates)
    : driver_(lease.device().driver()),
      stream_(lease.stream()),
      word_(&lease.slot().words[static_cast<std::size_t>(word)]),
      gates_(gates) {}

bool StreamGate::enqueue(std::uint32_t gates) {
  return driver_.enqueue_wait(stream_, word_->address, word_->next + gates - 1);
}

// What the device is to see behind the gate was written before.
void StreamGate::open(std::uint32_t gates) {
  if (word_ != nullptr) raise(word_->address, word_->next + gates - 1);
}

void StreamGate::let_go() {
  if (word_ == nullptr) return;
  open();
  word_->next += gates_;
  word_ = nullptr;
}

StreamSignal::StreamSignal(const StreamLease& lease, StreamWord word, std::uint32_t steps)
    : driver_(lease.device().driver()),
      slot_(lease.slot()),
      word_(&slot_.words[static_cast<std::size_t>(word)]),
      steps_(steps) {}

bool StreamSignal::enqueue() {
  const bool taken = driver_.enqueue_write(slot_.stream, word_->address, word_->next + enqueued_);
  if (taken) ++enqueued_;
  return taken;
}

void StreamSignal::give_unless_enqueued() {
  if (enqueued_ == 0) raise(word_->address, word_->next + steps_ - 1);
}

std::uint32_t StreamSignal::given() const {
  if (word_ == nullptr) return given_at_end_;
  const auto now = std::atomic_ref<std::uint32_t>(*word_->address).load(std::memory_order_acquire);
  return static_cast<std::uint32_t>(std::max(0, static_cast<std::int32_t>(now - (word_->next - 1))));
}

// A word that a stream has yet to write must not serve again: the late write would take it back.
void StreamSignal::let_go() {
  if (word_ == nullptr) return;
  given_at_end_ = given();
  if (given_at_end_ < enqueued_) slot_.is_spoiled = true;
  word_->next += steps_;
  word_ = nullptr;
}

}  // namespace geocomm::binding
