// Memory that a codec needs between its stages: one buffer per thread and purpose, which grows to the largest
// frame that the thread has seen (1 MiB of elements in geocomm's own use) and is kept, so that the hot path
// does not allocate. For a received frame it is asked for only after the caller's `dst` was found to match.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace geocomm::codec {

enum class ScratchUse : std::uint8_t { Codes, Bitmap, Values, Indices, Places, Frame };
inline constexpr std::size_t kScratchUses = 6;

// `bytes` of unspecified content, aligned to 64, with 64 bytes more that may be written. Valid until this
// thread asks again for the same use.
inline std::span<std::byte> thread_scratch(ScratchUse use, std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  struct Buffer {
    std::unique_ptr<std::byte[]> memory;
    std::byte* aligned = nullptr;
    std::size_t capacity = 0;
  };
  thread_local std::array<Buffer, kScratchUses> buffers;
  Buffer& buffer = buffers[static_cast<std::size_t>(use)];
  if (buffer.memory == nullptr || buffer.capacity < bytes) {
    buffer.memory = std::make_unique_for_overwrite<std::byte[]>(bytes + 2 * kAlignment);
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.memory.get());
    buffer.aligned = buffer.memory.get() + (kAlignment - address % kAlignment) % kAlignment;
    buffer.capacity = bytes;
  }
  // So that AddressSanitizer sees an overrun in a buffer that has grown larger before.
  ASAN_UNPOISON_MEMORY_REGION(buffer.aligned, bytes + kAlignment);
  ASAN_POISON_MEMORY_REGION(buffer.aligned + bytes + kAlignment, buffer.capacity - bytes);
  return {buffer.aligned, bytes};
}

}  // namespace geocomm::codec
