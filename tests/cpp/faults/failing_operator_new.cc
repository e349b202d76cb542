// The operator new that fails. A file of its own, so that no compiler looks through it.
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "failing_heap.h"

namespace {

constinit std::atomic<std::int64_t> g_left{-1};  // until the one that fails; below 0: none does

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (g_left.load(std::memory_order_relaxed) >= 0 && g_left.fetch_sub(1) == 0) return nullptr;
  const std::size_t size = (bytes + alignment) / alignment * alignment;
  return alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__ ? std::malloc(size)
                                                       : std::aligned_alloc(alignment, size);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__) {
  void* const memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate_or_throw(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocate_or_throw(bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace geocomm::faults {

void fail_after(std::int64_t before) {
  g_left = before;
}

bool stop_failing() {
  return g_left.exchange(-1) < 0;
}

}  // namespace geocomm::faults
