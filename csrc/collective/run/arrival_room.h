// Memory for frames as they come: usually a part of one piece, and more where they are larger than usual.
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>

#include "core/buffer.h"

namespace geocomm::collective {

// Thread-safe. What it gives stays whole as long as somebody holds it.
class ArrivalRoom {
 public:
  // Of `piece`; where that is used up, of `more`, too.
  ArrivalRoom(core::Buffer piece, core::BufferPool more) : piece_(std::move(piece)), more_(std::move(more)) {}

  // Of that size. Throws std::bad_alloc.
  core::Buffer take(std::size_t bytes) {
    constexpr std::size_t kAlignment = 16;
    const std::size_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    {
      std::lock_guard lock(mutex_);
      if (room <= piece_.size() - used_) {
        used_ += room;
        return piece_.part(used_ - room, bytes);
      }
    }
    return more_.sized(bytes);
  }

 private:
  const core::Buffer piece_;
  core::BufferPool more_;
  std::mutex mutex_;  // guards used_
  std::size_t used_ = 0;
};

}  // namespace geocomm::collective
