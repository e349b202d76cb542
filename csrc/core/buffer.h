// Owned bytes with a size, shared by reference count, out of a pool that recycles them.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace geocomm::core {

// A reference to a block of memory with `size` valid bytes out of `capacity`. Copying shares the block;
// whoever fills it does so before sharing. The block goes back to its pool with the last reference. 64-byte
// aligned.
class Buffer {
 public:
  Buffer() = default;

  // Memory that is somebody else's, all of it valid, and held until the last reference is gone.
  static Buffer around(std::shared_ptr<std::byte> memory, std::size_t size) {
    Buffer buffer(std::move(memory), size);
    buffer.size_ = size;
    return buffer;
  }

  std::byte* data() const { return block_.get(); }
  std::size_t size() const { return size_; }
  std::size_t capacity() const { return capacity_; }
  bool empty() const { return size_ == 0; }
  // Precondition: size <= capacity().
  void resize(std::size_t size) { size_ = size; }
  std::span<std::byte> span() const { return {block_.get(), size_}; }
  std::span<std::byte> room() const { return {block_.get(), capacity_}; }
  // `size` bytes from `begin` on, sharing the block. Precondition: they are valid.
  Buffer part(std::size_t begin, std::size_t size) const { return around({block_, data() + begin}, size); }

 private:
  friend class BufferPool;
  Buffer(std::shared_ptr<std::byte> block, std::size_t capacity)
      : block_(std::move(block)), capacity_(capacity) {}

  std::shared_ptr<std::byte> block_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

// Where a pool's memory comes from. Both are thread-safe; `allocate` throws std::bad_alloc.
struct MemorySource {
  std::function<std::byte*(std::size_t bytes)> allocate;  // aligned to 64
  std::function<void(std::byte* memory, std::size_t bytes)> free;
};
// Of the heap.
MemorySource heap_memory();

// What a pool's memory does, in bytes.
struct PoolUsage {
  std::size_t asked_bytes = 0;       // of the buffers that are out: what acquire() was asked for
  std::size_t out_bytes = 0;         // and what they take
  std::size_t held_bytes = 0;        // from the source: those, and what lies idle
  std::size_t most_asked_bytes = 0;  // most there ever was
  std::size_t most_held_bytes = 0;
};

// Thread-safe. Buffers may outlive the pool. At most `max_cached_bytes` lie idle; more are freed at once.
class BufferPool {
 public:
  explicit BufferPool(std::size_t max_cached_bytes = std::size_t{256} << 20,
                      MemorySource source = heap_memory());

  // A buffer with room for `capacity` bytes and size 0; its content is unspecified. Sizes are rounded up by
  // at most an eighth (to 4 KiB at least), so that blocks fit again. Throws std::bad_alloc; callers
  // cap sizes that a peer named.
  Buffer acquire(std::size_t capacity);
  // The same of `size` bytes.
  Buffer sized(std::size_t size);
  // An empty buffer for no bytes.
  Buffer copy_of(std::span<const std::byte> bytes);
  // For what is kept for long: the buffer, or, where that saves half of its memory, a copy that fits its
  // content.
  Buffer fitted(Buffer buffer);
  // Frees, on this thread, what has lain idle for so long.
  void free_idle(std::chrono::milliseconds at_least);
  PoolUsage usage() const;

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace geocomm::core
