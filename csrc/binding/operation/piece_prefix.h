// Pieces of a run of bytes, and how many of them are whole, from the first on, while bytes come in any order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace geocomm::binding {

// Thread-safe.
class PiecePrefix {
 public:
  // At least one of each.
  PiecePrefix(std::size_t bytes, std::size_t piece_bytes) : bytes_(bytes), piece_bytes_(piece_bytes) {
    for (std::size_t begin = 0; begin < bytes; begin += piece_bytes) {
      missing_.push_back(std::min(piece_bytes, bytes - begin));
    }
  }

  std::uint32_t pieces() const { return static_cast<std::uint32_t>(missing_.size()); }
  std::uint32_t pieces_that_hold(std::size_t first_bytes) const {
    return static_cast<std::uint32_t>((first_bytes + piece_bytes_ - 1) / piece_bytes_);
  }
  std::size_t bytes_of(std::uint32_t first_pieces) const {
    return std::min(bytes_, std::size_t{first_pieces} * piece_bytes_);
  }
  // These bytes have come, which had not. How many pieces are whole now.
  std::uint32_t add(std::size_t begin, std::size_t end) {
    std::lock_guard lock(mutex_);
    while (begin < end) {
      const std::size_t piece = begin / piece_bytes_;
      const std::size_t until = std::min(end, (piece + 1) * piece_bytes_);
      missing_[piece] -= until - begin;
      begin = until;
    }
    while (whole_ < missing_.size() && missing_[whole_] == 0) ++whole_;
    return whole_;
  }

 private:
  const std::size_t bytes_;
  const std::size_t piece_bytes_;
  std::mutex mutex_;  // guards all below
  std::vector<std::size_t> missing_;
  std::uint32_t whole_ = 0;
};

}  // namespace geocomm::binding
