// What carries segments.
#pragma once

#include <compare>
#include <cstdint>

namespace geocomm::transport {

// One connection of a link.
struct Carrier {
  std::uint16_t stream = 0;
  std::uint32_t generation = 0;
  friend auto operator<=>(const Carrier&, const Carrier&) = default;
};

}  // namespace geocomm::transport
