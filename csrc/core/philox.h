// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011): random
// bits as a pure function of a key and a counter, the same on every thread and device.
#pragma once

#include <array>
#include <cstdint>

namespace geocomm::core {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  auto [a, b, c, d] = counter;
  auto [k0, k1] = key;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product_a = std::uint64_t{0xD2511F53} * a;
    const std::uint64_t product_c = std::uint64_t{0xCD9E8D57} * c;
    a = static_cast<std::uint32_t>(product_c >> 32) ^ b ^ k0;
    b = static_cast<std::uint32_t>(product_c);
    c = static_cast<std::uint32_t>(product_a >> 32) ^ d ^ k1;
    d = static_cast<std::uint32_t>(product_a);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {a, b, c, d};
}

}  // namespace geocomm::core
