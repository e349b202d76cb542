#include "core/buffer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <new>

namespace geocomm::core {

namespace {
constexpr std::align_val_t kAlignment{64};
constexpr std::size_t kMinCapacity = 4096;
}  // namespace

MemorySource heap_memory() {
  return {[](std::size_t bytes) { return static_cast<std::byte*>(::operator new(bytes, kAlignment)); },
          [](std::byte* memory, std::size_t) { ::operator delete(memory, kAlignment); }};
}

// Free blocks by power of two. Outlives the pool while buffers are out.
struct BufferPool::Shelf {
  Shelf(std::size_t max_cached, MemorySource memory) : max_cached_bytes(max_cached), source(memory) {}
  ~Shelf() {
    for (std::size_t bits = 0; bits < free_blocks.size(); ++bits) {
      for (std::byte* block : free_blocks[bits]) source.free(block, std::size_t{1} << bits);
    }
  }

  std::byte* take(std::size_t capacity) {
    {
      std::lock_guard lock(mutex);
      outstanding_bytes += capacity;
      auto& blocks = free_blocks[std::countr_zero(capacity)];
      if (!blocks.empty()) {
        std::byte* block = blocks.back();
        blocks.pop_back();
        cached_bytes -= capacity;
        return block;
      }
    }
    return source.allocate(capacity);
  }

  void give_back(std::byte* block, std::size_t capacity) {
    {
      std::lock_guard lock(mutex);
      outstanding_bytes -= capacity;
      if (cached_bytes + capacity <= max_cached_bytes) {
        cached_bytes += capacity;
        free_blocks[std::countr_zero(capacity)].push_back(block);
        return;
      }
    }
    source.free(block, capacity);
  }

  const std::size_t max_cached_bytes;
  const MemorySource source;
  mutable std::mutex mutex;  // guards all below
  std::array<std::vector<std::byte*>, 64> free_blocks;
  std::size_t cached_bytes = 0;
  std::size_t outstanding_bytes = 0;
};

BufferPool::BufferPool(std::size_t max_cached_bytes, MemorySource source)
    : shelf_(std::make_shared<Shelf>(max_cached_bytes, source)) {}

Buffer BufferPool::acquire(std::size_t capacity) {
  const std::size_t rounded = std::bit_ceil(std::max(capacity, kMinCapacity));
  std::shared_ptr<std::byte> block(
      shelf_->take(rounded), [shelf = shelf_, rounded](std::byte* ptr) { shelf->give_back(ptr, rounded); });
  return {std::move(block), rounded};
}

std::size_t BufferPool::outstanding_bytes() const {
  std::lock_guard lock(shelf_->mutex);
  return shelf_->outstanding_bytes;
}

}  // namespace geocomm::core
