// What names a process, a job and an operation.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace geocomm::transport {

// Random, made anew by every process: it names the incarnation, so that a restarted peer is never taken for
// the old one.
using ProcessId = std::array<std::uint8_t, 16>;
// Random, shared by the ranks of a process group through the store: who does not know it is refused.
using JobToken = std::array<std::uint8_t, 16>;

// An operation of a group. `op` is the same number on all its ranks.
struct OpKey {
  std::uint64_t group = 0;
  std::uint64_t op = 0;
  friend auto operator<=>(const OpKey&, const OpKey&) = default;
};

// For std::unordered_map.
struct OpKeyHash {
  std::size_t operator()(const OpKey& key) const {
    // Operation numbers are dense and groups random: the multiplication spreads the former.
    return static_cast<std::size_t>((key.group ^ (key.op * 0x9E3779B97F4A7C15ULL)) * 0xD6E8FEB86659FD93ULL);
  }
};

}  // namespace geocomm::transport
