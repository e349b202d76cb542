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

}  // namespace geocomm::transport
