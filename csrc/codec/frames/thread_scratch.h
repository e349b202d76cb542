// Memory that a codec needs between its stages: one buffer per thread and purpose, which grows to the largest
// frame that the thread has seen and is kept, so that the hot path does not allocate: frames of geocomm's own
// have 1 MiB of elements. What larger ones needed is freed after them. For a received frame it is asked for
// only after the caller's `dst` was found to match.
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

enum class ScratchUse : std::uint8_t { Codes, Bitmap, Values, Indices, Places, Plane, Frame };
inline constexpr std::size_t kScratchUses = 7;
inline constexpr std::size_t kKeptScratch = std::size_t{4} << 20;  // bytes of a buffer

struct ScratchBuffer {
  std::unique_ptr<std::byte[]> memory;
  std::byte* aligned = nullptr;
  std::size_t capacity = 0;
};
inline std::array<ScratchBuffer, kScratchUses>& thread_scratch_buffers() {
  thread_local std::array<ScratchBuffer, kScratchUses> buffers;
  return buffers;
}

// `bytes` of unspecified content, aligned to 64, with 64 bytes more that may be written. Valid until this
// thread asks again for the same use.
inline std::span<std::byte> thread_scratch(ScratchUse use, std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  ScratchBuffer& buffer = thread_scratch_buffers()[static_cast<std::size_t>(use)];
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

// Around the work on one frame, which may be of any size: frees at its end what is too large to be kept, but
// the room for the frame itself, which its caller may have asked for.
class ScratchOfFrame {
 public:
  ScratchOfFrame() = default;
  ~ScratchOfFrame() {
    auto& buffers = thread_scratch_buffers();
    for (std::size_t use = 0; use < kScratchUses; ++use) {
      if (buffers[use].capacity > kKeptScratch && use != static_cast<std::size_t>(ScratchUse::Frame)) {
        buffers[use] = {};
      }
    }
  }
  ScratchOfFrame(const ScratchOfFrame&) = delete;
  ScratchOfFrame& operator=(const ScratchOfFrame&) = delete;
};

}  // namespace geocomm::codec
