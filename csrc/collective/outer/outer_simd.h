// The loops of OuterKernels on vectors V (codec/simd). All is local to the file that includes it.
#pragma once

#include <cstddef>

#include "codec/simd/partial_sums.h"
#include "collective/outer/outer_kernels.h"

namespace geocomm::collective {
namespace {

template <typename V>
void subtract(const float* anchor, const float* local, std::size_t count, float* delta, double* squares) {
  codec::VectorSquares<V> sums(squares);
  codec::for_vectors<V>(count, [&](std::size_t lane, std::size_t i) {
    const auto difference = V::load(anchor + i) - V::load(local + i);
    V::store(delta + i, difference);
    sums.add(lane, difference);
  });
}

template <typename V>
void mean(const float* const* deltas, const float* shares, std::size_t sites, std::size_t first,
          std::size_t count, float* mean, double* squares) {
  codec::VectorSquares<V> sums(squares);
  codec::for_vectors<V>(count, [&](std::size_t lane, std::size_t i) {
    auto sum = V::load(deltas[0] + first + i) * V::set(shares[0]);
    for (std::size_t site = 1; site < sites; ++site) {
      sum = sum + V::load(deltas[site] + first + i) * V::set(shares[site]);
    }
    V::store(mean + first + i, sum);
    sums.add(lane, sum);
  });
}

template <typename V, bool kHasMomentum>
void step_loop(float lr, float mu, const float* delta, std::size_t count, float* anchor, float* momentum,
               double* moved, double* given) {
  const auto rate = V::set(lr);
  const auto factor = V::set(mu);
  codec::VectorSquares<V> moves(moved);
  codec::VectorSquares<V> deltas(given);
  codec::for_vectors<V>(count, [&](std::size_t lane, std::size_t i) {
    const auto own = V::load(delta + i);
    auto change = own;
    if constexpr (kHasMomentum) {
      const auto velocity = factor * V::load(momentum + i) + own;
      V::store(momentum + i, velocity);
      change = factor * velocity + own;
    }
    const auto move = rate * change;
    V::store(anchor + i, V::load(anchor + i) - move);
    moves.add(lane, move);
    deltas.add(lane, own);
  });
}

template <typename V>
void step(float lr, float mu, const float* delta, std::size_t count, float* anchor, float* momentum,
          double* moved, double* given) {
  momentum != nullptr ? step_loop<V, true>(lr, mu, delta, count, anchor, momentum, moved, given)
                      : step_loop<V, false>(lr, mu, delta, count, anchor, nullptr, moved, given);
}

template <typename V>
void carry(const float* anchor, const float* begin, std::size_t count, float* own) {
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    V::store(own + i, (V::load(own + i) - V::load(begin + i)) + V::load(anchor + i));
  }
}

template <typename V>
void blend(float keep, float take, const float* anchor, std::size_t count, float* own) {
  const auto kept = V::set(keep);
  const auto taken = V::set(take);
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    V::store(own + i, V::load(own + i) * kept + V::load(anchor + i) * taken);
  }
}

template <typename V>
inline constexpr OuterKernels kOuterLoops{subtract<V>, mean<V>, step<V>, carry<V>, blend<V>};

}  // namespace
}  // namespace geocomm::collective
