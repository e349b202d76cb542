// The loops of OuterKernels on vectors V (codec/simd). All is local to the file that includes it.
#pragma once

#include <cstddef>

#include "codec/simd/partial_sums.h"
#include "collective/outer/outer_kernels.h"

namespace geocomm::collective {
namespace {

using codec::kSquareSums;

template <typename V>
class SquareSums {
 public:
  void add(std::size_t element, typename V::Floats values) { vectors_.add(element, values); }
  // From here on one element at a time.
  void end_vectors() { vectors_.store(sums_); }
  void add_one(std::size_t element, float value) { codec::add_square(sums_[element % kSquareSums], value); }
  double total() { return codec::fold_sums(sums_, kSquareSums); }

 private:
  double sums_[kSquareSums] = {};
  codec::VectorSquares<V> vectors_{sums_};
};

// Calls vector(i, i % kSquareSums) for as many whole steps of kSquareSums elements as there are, then
// middle(), then one(i) for each that is left over.
template <typename V, typename Vector, typename Middle, typename One>
[[gnu::always_inline]] inline void in_steps(std::size_t count, const Vector& vector, const Middle& middle,
                                            const One& one) {
  const std::size_t whole = count - count % kSquareSums;
  for (std::size_t i = 0; i < whole; i += kSquareSums) {
    for (std::size_t at = 0; at < kSquareSums; at += V::kLanes) vector(i + at, at);
  }
  middle();
  for (std::size_t i = whole; i < count; ++i) one(i);
}

// The sum of the squares of what vector(i) and one(i) return.
template <typename V, typename Vector, typename One>
[[gnu::always_inline]] inline double with_squares(std::size_t count, const Vector& vector, const One& one) {
  SquareSums<V> sums;
  in_steps<V>(
      count, [&](std::size_t i, std::size_t at) { sums.add(at, vector(i)); }, [&] { sums.end_vectors(); },
      [&](std::size_t i) { sums.add_one(i, one(i)); });
  return sums.total();
}

template <typename V>
double subtract(const float* anchor, const float* local, std::size_t count, float* delta) {
  return with_squares<V>(
      count,
      [&](std::size_t i) {
        const auto difference = V::load(anchor + i) - V::load(local + i);
        V::store(delta + i, difference);
        return difference;
      },
      [&](std::size_t i) { return delta[i] = anchor[i] - local[i]; });
}

template <typename V>
double mean(const float* const* deltas, const float* shares, std::size_t sites, std::size_t count,
            float* mean) {
  return with_squares<V>(
      count,
      [&](std::size_t i) {
        auto sum = V::load(deltas[0] + i) * V::set(shares[0]);
        for (std::size_t site = 1; site < sites; ++site) {
          sum = sum + V::load(deltas[site] + i) * V::set(shares[site]);
        }
        V::store(mean + i, sum);
        return sum;
      },
      [&](std::size_t i) {
        float sum = deltas[0][i] * shares[0];
        for (std::size_t site = 1; site < sites; ++site) sum = sum + deltas[site][i] * shares[site];
        return mean[i] = sum;
      });
}

template <typename V, bool kHasMomentum>
StepSquares step_loop(float lr, float mu, const float* delta, std::size_t count, float* anchor,
                      float* momentum) {
  const auto rate = V::set(lr);
  const auto factor = V::set(mu);
  SquareSums<V> moves;
  SquareSums<V> deltas;
  in_steps<V>(
      count,
      [&](std::size_t i, std::size_t at) {
        const auto given = V::load(delta + i);
        auto change = given;
        if constexpr (kHasMomentum) {
          const auto velocity = factor * V::load(momentum + i) + given;
          V::store(momentum + i, velocity);
          change = factor * velocity + given;
        }
        const auto move = rate * change;
        V::store(anchor + i, V::load(anchor + i) - move);
        moves.add(at, move);
        deltas.add(at, given);
      },
      [&] {
        moves.end_vectors();
        deltas.end_vectors();
      },
      [&](std::size_t i) {
        float change = delta[i];
        if constexpr (kHasMomentum) {
          momentum[i] = mu * momentum[i] + delta[i];
          change = mu * momentum[i] + delta[i];
        }
        const float move = lr * change;
        anchor[i] = anchor[i] - move;
        moves.add_one(i, move);
        deltas.add_one(i, delta[i]);
      });
  return {moves.total(), deltas.total()};
}

template <typename V>
StepSquares step(float lr, float mu, const float* delta, std::size_t count, float* anchor, float* momentum) {
  return momentum != nullptr ? step_loop<V, true>(lr, mu, delta, count, anchor, momentum)
                             : step_loop<V, false>(lr, mu, delta, count, anchor, nullptr);
}

template <typename V>
void carry(const float* anchor, const float* begin, std::size_t count, float* own) {
  std::size_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) {
    V::store(own + i, (V::load(own + i) - V::load(begin + i)) + V::load(anchor + i));
  }
  for (; i < count; ++i) own[i] = (own[i] - begin[i]) + anchor[i];
}

template <typename V>
void blend(float keep, float take, const float* anchor, std::size_t count, float* own) {
  const auto kept = V::set(keep);
  const auto taken = V::set(take);
  std::size_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) {
    V::store(own + i, V::load(own + i) * kept + V::load(anchor + i) * taken);
  }
  for (; i < count; ++i) own[i] = own[i] * keep + anchor[i] * take;
}

template <typename V>
inline constexpr OuterKernels kOuterLoops{subtract<V>, mean<V>, step<V>, carry<V>, blend<V>};

}  // namespace
}  // namespace geocomm::collective
