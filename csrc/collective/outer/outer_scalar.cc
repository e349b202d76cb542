// The reference: what every other table of OuterKernels equals bit for bit.
#include "codec/simd/partial_sums.h"
#include "collective/outer/outer_kernels.h"

namespace geocomm::collective {
namespace {

class SquareSums {
 public:
  void add(std::size_t element, float value) {
    codec::add_square(sums_[element % codec::kSquareSums], value);
  }
  double total() { return codec::fold_sums(sums_, codec::kSquareSums); }

 private:
  double sums_[codec::kSquareSums] = {};
};

double subtract(const float* anchor, const float* local, std::size_t count, float* delta) {
  SquareSums sums;
  for (std::size_t i = 0; i < count; ++i) {
    delta[i] = anchor[i] - local[i];
    sums.add(i, delta[i]);
  }
  return sums.total();
}

double mean(const float* const* deltas, const float* shares, std::size_t sites, std::size_t count,
            float* mean) {
  SquareSums sums;
  for (std::size_t i = 0; i < count; ++i) {
    float sum = deltas[0][i] * shares[0];
    for (std::size_t site = 1; site < sites; ++site) sum = sum + deltas[site][i] * shares[site];
    mean[i] = sum;
    sums.add(i, sum);
  }
  return sums.total();
}

StepSquares step(float lr, float mu, const float* delta, std::size_t count, float* anchor, float* momentum) {
  SquareSums moves;
  SquareSums deltas;
  for (std::size_t i = 0; i < count; ++i) {
    float change = delta[i];
    if (momentum != nullptr) {
      momentum[i] = mu * momentum[i] + delta[i];
      change = mu * momentum[i] + delta[i];
    }
    const float move = lr * change;
    anchor[i] = anchor[i] - move;
    moves.add(i, move);
    deltas.add(i, delta[i]);
  }
  return {moves.total(), deltas.total()};
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
