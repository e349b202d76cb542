#include "core/buffer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>

#include "core/status.h"

namespace geocomm::core {

namespace {
constexpr std::align_val_t kAlignment{64};
constexpr std::size_t kMinCapacity = 4096;
constexpr int kStepBits = 3;  // eight classes between a power of two and the next

// What is handed out for so many bytes, and where it lies on the shelf.
struct SizeClass {
  explicit SizeClass(std::size_t bytes) {
    const std::size_t last = std::max(bytes, kMinCapacity) - 1;
    const int step_bits = std::bit_width(last) - 1 - kStepBits;
    const std::size_t steps = (last >> step_bits) + 1;
    capacity = steps << step_bits;
    index = (static_cast<std::size_t>(step_bits) << kStepBits) + (steps - 1) % (1 << kStepBits);
  }
  std::size_t capacity = 0;
  std::size_t index = 0;
};
constexpr std::size_t kClasses = std::size_t{64} << kStepBits;
// An idle block of so many classes above, a quarter larger, is better than a new one beside it.
constexpr std::size_t kClassesAbove = 2;
}  // namespace

MemorySource heap_memory() {
  return {[](std::size_t bytes) { return static_cast<std::byte*>(::operator new(bytes, kAlignment)); },
          [](std::byte* memory, std::size_t) { ::operator delete(memory, kAlignment); }};
}

// Free blocks by size class. Outlives the pool while buffers are out.
struct BufferPool::Shelf {
  Shelf(std::size_t max_cached, MemorySource memory) : max_cached_bytes(max_cached), source(memory) {}
  ~Shelf() {
    for (const auto& blocks : free_blocks) {
      for (const Block& block : blocks) source.free(block.memory, block.capacity);
    }
  }

  // `size` becomes that of the block.
  std::byte* take(SizeClass& size, std::size_t asked) {
    {
      std::lock_guard lock(mutex);
      usage.asked_bytes += asked;
      usage.most_asked_bytes = std::max(usage.most_asked_bytes, usage.asked_bytes);
      for (std::size_t index = size.index; index <= size.index + kClassesAbove; ++index) {
        auto& blocks = free_blocks[index];
        if (blocks.empty()) continue;
        const Block block = blocks.back();
        blocks.pop_back();
        size = SizeClass(block.capacity);
        usage.out_bytes += size.capacity;
        return block.memory;
      }
      usage.out_bytes += size.capacity;
      usage.held_bytes += size.capacity;
      usage.most_held_bytes = std::max(usage.most_held_bytes, usage.held_bytes);
    }
    try {
      return source.allocate(size.capacity);
    } catch (...) {
      std::lock_guard lock(mutex);
      usage.asked_bytes -= asked;
      usage.out_bytes -= size.capacity;
      usage.held_bytes -= size.capacity;
      throw;
    }
  }

  void give_back(std::byte* memory, const SizeClass& size, std::size_t asked) {
    {
      std::lock_guard lock(mutex);
      usage.asked_bytes -= asked;
      usage.out_bytes -= size.capacity;
      if (usage.held_bytes - usage.out_bytes <= max_cached_bytes &&
          core::without_throwing([&] {
            free_blocks[size.index].push_back({memory, size.capacity, std::chrono::steady_clock::now()});
            return Status::ok();
          }).is_ok()) {
        return;
      }
      usage.held_bytes -= size.capacity;
    }
    source.free(memory, size.capacity);
  }

  void free_idle(std::chrono::milliseconds at_least) {
    const auto until = std::chrono::steady_clock::now() - at_least;
    std::unique_lock lock(mutex);
    for (auto& blocks : free_blocks) {
      while (!blocks.empty() && blocks.front().idle_since <= until) {
        const Block block = blocks.front();
        blocks.erase(blocks.begin());
        usage.held_bytes -= block.capacity;
        lock.unlock();
        source.free(block.memory, block.capacity);
        lock.lock();
      }
    }
  }

  struct Block {
    std::byte* memory;
    std::size_t capacity;
    std::chrono::steady_clock::time_point idle_since;
  };

  const std::size_t max_cached_bytes;
  const MemorySource source;
  mutable std::mutex mutex;                                              // guards all below
  std::array<std::vector<Block>, kClasses + kClassesAbove> free_blocks;  // the longest idle first
  PoolUsage usage;
};

BufferPool::BufferPool(std::size_t max_cached_bytes, MemorySource source)
    : shelf_(std::make_shared<Shelf>(max_cached_bytes, source)) {}

Buffer BufferPool::acquire(std::size_t capacity) {
  SizeClass size(capacity);
  std::byte* const taken = shelf_->take(size, capacity);
  std::shared_ptr<std::byte> block(taken, [shelf = shelf_, size, capacity](std::byte* memory) {
    shelf->give_back(memory, size, capacity);
  });
  return {std::move(block), size.capacity};
}

Buffer BufferPool::sized(std::size_t size) {
  Buffer buffer = acquire(size);
  buffer.resize(size);
  return buffer;
}

Buffer BufferPool::copy_of(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  Buffer copy = sized(bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}

Buffer BufferPool::fitted(Buffer buffer) {
  const bool fits = 2 * SizeClass(buffer.size()).capacity > buffer.capacity();
  return fits ? buffer : copy_of(buffer.span());
}

void BufferPool::free_idle(std::chrono::milliseconds at_least) {
  shelf_->free_idle(at_least);
}

PoolUsage BufferPool::usage() const {
  std::lock_guard lock(shelf_->mutex);
  return shelf_->usage;
}

}  // namespace geocomm::core
