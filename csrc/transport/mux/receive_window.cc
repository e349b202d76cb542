#include "transport/mux/receive_window.h"

#include <algorithm>
#include <bit>

namespace geocomm::transport {

using core::Status;

Status ReceiveWindow::check(std::uint64_t number) const {
  if (number == 0 || (number >= low_ && number - low_ >= kMaxNumberSpan)) {
    return core::corrupt("segment number ", number, " while ", low_, " is missing (at most ", kMaxNumberSpan,
                         " ahead)");
  }
  return Status::ok();
}

bool ReceiveWindow::has(std::uint64_t number) const {
  if (number < low_) return true;
  const std::uint64_t block = number / 64 - first_block();
  return block < blocks_.size() && (blocks_[block] >> (number % 64) & 1) != 0;
}

bool ReceiveWindow::add(std::uint64_t number) {
  // Of a block that has left the window only `low` is told, with whichever block is.
  dirty_.insert(std::max(number / 64, first_block()));
  if (has(number)) return false;
  const std::uint64_t block = number / 64 - first_block();
  if (blocks_.size() <= block) blocks_.resize(block + 1);
  blocks_[block] |= std::uint64_t{1} << (number % 64);
  if (number != low_) return true;
  for (;;) {
    const auto run = static_cast<std::uint64_t>(std::countr_one(blocks_.front() >> (low_ % 64)));
    const std::uint64_t left = 64 - low_ % 64;
    low_ += std::min(run, left);
    if (run < left) return true;
    blocks_.pop_front();
    if (blocks_.empty()) return true;
  }
}

void ReceiveWindow::tell_all() {
  dirty_.insert(first_block());
  for (std::uint64_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i] != 0) dirty_.insert(first_block() + i);
  }
}

void ReceiveWindow::collect(std::vector<AckPacket>& out) {
  dirty_.erase(dirty_.begin(), dirty_.lower_bound(first_block()));
  if (dirty_.empty()) dirty_.insert(first_block());
  for (const std::uint64_t block : dirty_) {
    const std::uint64_t i = block - first_block();
    out.push_back({.low = low_, .base = 64 * block, .bits = i < blocks_.size() ? blocks_[i] : 0});
  }
  dirty_.clear();
}

}  // namespace geocomm::transport
