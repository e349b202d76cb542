// Planes for the tests of entropy stages: bytes of many kinds, and what a stage must do with any of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "codec/entropy/plane.h"
#include "core/cpu.h"

namespace geocomm::codec {

using PlaneBytes = std::vector<std::byte>;

// A generator of the tests' own, so that the data is the same everywhere.
class TestRandom {
 public:
  explicit TestRandom(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) {}
  std::uint32_t next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::uint32_t>(state_ >> 33) ^ static_cast<std::uint32_t>(state_ >> 55);
  }
  double uniform() { return (next() & 0xFFFFFF) / double{1 << 24}; }

 private:
  std::uint64_t state_;
};

inline PlaneBytes make_plane(std::size_t size, const std::function<unsigned(std::size_t)>& symbol) {
  PlaneBytes plane(size);
  for (std::size_t i = 0; i < size; ++i) plane[i] = static_cast<std::byte>(symbol(i));
  return plane;
}

// Kinds of planes by name; all have the same size.
struct PlaneKind {
  const char* name;
  PlaneBytes (*make)(std::size_t size);
};

inline PlaneBytes constant_plane(std::size_t size) {
  return make_plane(size, [](std::size_t) { return 0xA7U; });
}
inline PlaneBytes uniform_plane(std::size_t size) {
  TestRandom random(size + 1);
  return make_plane(size, [&](std::size_t) { return random.next() & 0xFF; });
}
inline PlaneBytes two_symbol_plane(std::size_t size) {
  TestRandom random(size + 2);
  return make_plane(size, [&](std::size_t) { return random.next() % 3 == 0 ? 255U : 0U; });
}
// One in fifty differs: short codes, and few words for many rows.
inline PlaneBytes sparse_plane(std::size_t size) {
  TestRandom random(size + 3);
  return make_plane(size, [&](std::size_t) { return random.next() % 50 == 0 ? random.next() & 7 : 0U; });
}
// As int8 codes of Gaussian data.
inline PlaneBytes gaussian_plane(std::size_t size) {
  TestRandom random(size + 4);
  return make_plane(size, [&](std::size_t) {
    double sum = -6;
    for (int k = 0; k < 12; ++k) sum += random.uniform();
    return static_cast<unsigned>(static_cast<int>(std::lrint(sum * 32))) & 0xFF;
  });
}
// Each symbol half as frequent as the one before: codes beyond any limit.
inline PlaneBytes geometric_plane(std::size_t size) {
  TestRandom random(size + 5);
  return make_plane(size, [&](std::size_t) {
    return static_cast<unsigned>(std::countl_zero(random.next() | 1)) * 11 & 0xFF;
  });
}
// All symbols, few of them often.
inline PlaneBytes skewed_plane(std::size_t size) {
  TestRandom random(size + 6);
  return make_plane(size, [&](std::size_t) {
    const double u = random.uniform();
    return static_cast<unsigned>(u * u * u * u * 256);
  });
}
inline constexpr PlaneKind kPlaneKinds[] = {
    {"constant", constant_plane}, {"uniform", uniform_plane},   {"two_symbol", two_symbol_plane},
    {"sparse", sparse_plane},     {"gaussian", gaussian_plane}, {"geometric", geometric_plane},
    {"skewed", skewed_plane},
};

inline PlaneBytes encoded(Entropy stage, std::span<const std::byte> plane) {
  PlaneBytes coded(plane_bound(stage, plane.size()));
  coded.resize(encode_plane(stage, plane, coded.data()));
  return coded;
}

// Decodes from an allocation of exactly the coded bytes, so that ASan sees every read beyond them.
inline core::Status decoded(Entropy stage, std::span<const std::byte> coded, PlaneBytes& dst) {
  const PlaneBytes exact(coded.begin(), coded.end());
  const auto size = coded_plane_bytes(stage, exact, dst.size());
  if (!size.is_ok()) return size.status();
  return decode_plane(stage, std::span(exact).first(*size), dst);
}

// Runs `body` with each CPU level that this machine has.
template <typename Body>
void at_every_cpu_level(Body&& body) {
  const core::CpuLevel before = core::cpu_level();
  for (const auto here : core::cpu_levels()) {
    SCOPED_TRACE(core::to_string(here));
    ASSERT_TRUE(core::force_cpu_level(here).is_ok());
    body();
  }
  ASSERT_TRUE(core::force_cpu_level(before).is_ok());
}

}  // namespace geocomm::codec
