// The reference: what every other table of OuterKernels equals bit for bit.
#include "codec/simd/partial_sums.h"
#include "collective/outer/outer_kernels.h"

namespace geocomm::collective {
namespace {

void subtract(const float* anchor, const float* local, std::size_t count, float* delta, double* squares) {
  codec::for_lanes(count, [&](std::size_t lane, std::size_t i) {
    delta[i] = anchor[i] - local[i];
    codec::add_square(squares[lane], delta[i]);
  });
}

void mean(const float* const* deltas, const float* shares, std::size_t sites, std::size_t first,
          std::size_t count, float* mean, double* squares) {
  codec::for_lanes(count, [&](std::size_t lane, std::size_t i) {
    float sum = deltas[0][first + i] * shares[0];
    for (std::size_t site = 1; site < sites; ++site) sum = sum + deltas[site][first + i] * shares[site];
    mean[first + i] = sum;
    codec::add_square(squares[lane], sum);
  });
}

void step(float lr, float mu, const float* delta, std::size_t count, float* anchor, float* momentum,
          double* moved, double* given) {
  codec::for_lanes(count, [&](std::size_t lane, std::size_t i) {
    float change = delta[i];
    if (momentum != nullptr) {
      momentum[i] = mu * momentum[i] + delta[i];
      change = mu * momentum[i] + delta[i];
    }
    const float move = lr * change;
    anchor[i] = anchor[i] - move;
    codec::add_square(moved[lane], move);
    codec::add_square(given[lane], delta[i]);
  });
}

void carry(const float* anchor, const float* begin, std::size_t count, float* own) {
  for (std::size_t i = 0; i < count; ++i) own[i] = (own[i] - begin[i]) + anchor[i];
}

void blend(float keep, float take, const float* anchor, std::size_t count, float* own) {
  for (std::size_t i = 0; i < count; ++i) own[i] = own[i] * keep + anchor[i] * take;
}

constexpr OuterKernels kLoops{subtract, mean, step, carry, blend};

}  // namespace

constinit const OuterKernels OuterKernels::kScalar = kLoops;

}  // namespace geocomm::collective
