// What kernels move over the bus between a device and the host: which of the bytes in pinned memory they
// touch.
#pragma once

#include <cstddef>
#include <functional>

#include "core/buffer.h"

namespace geocomm::simt {

// Memory that the host and the kernels reach. While it is watched its pages are closed to this process, and
// each access to them is taken note of, by the processor's single steps: kernels alone may touch it then. One
// at a time. x86-64 alone, see is_possible().
class BusWatch {
 public:
  static bool is_possible();
  explicit BusWatch(std::size_t bytes);
  ~BusWatch();
  BusWatch(const BusWatch&) = delete;
  BusWatch& operator=(const BusWatch&) = delete;

  // A source of that memory, which is never used twice.
  core::MemorySource source();
  // The kernels that `run` starts are watched.
  void watch(const std::function<void()>& run);
  // Of all that were: the sectors of 32 bytes that each kernel read, and those that it wrote, once per
  // kernel.
  std::size_t bytes_read() const;
  std::size_t bytes_written() const;
};

}  // namespace geocomm::simt
