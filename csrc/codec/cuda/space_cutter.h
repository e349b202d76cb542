// A workspace in parts, computed on the host.
#pragma once

#include <cstddef>
#include <cstdint>

namespace geocomm::codec::cuda {

// Hands out memory from `room` on; from a room of nullptr it tells how much that would be.
class SpaceCutter {
 public:
  explicit SpaceCutter(void* room = nullptr) : begin_(reinterpret_cast<std::uintptr_t>(room)) {}

  template <typename T>
  T* take(std::uint64_t count) {
    T* memory = reinterpret_cast<T*>(begin_ + bytes_);
    bytes_ += aligned(count * sizeof(T));
    return memory;
  }
  std::size_t bytes() const { return bytes_; }
  std::uint8_t* rest() const { return reinterpret_cast<std::uint8_t*>(begin_ + bytes_); }

  static constexpr std::uint64_t aligned(std::uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static constexpr std::uint64_t kAlignment = 16;

 private:
  const std::uintptr_t begin_;
  std::size_t bytes_ = 0;
};

constexpr std::uint32_t parts_of(std::uint64_t count, std::uint64_t part) {
  return static_cast<std::uint32_t>((count + part - 1) / part);
}

}  // namespace geocomm::codec::cuda
