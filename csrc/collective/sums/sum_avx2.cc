#include "collective/sums/sum_kernels.h"

#ifdef __AVX2__
#include "collective/sums/float_formats_avx2.h"
#include "collective/sums/sum_loops.h"
#endif

namespace geocomm::collective {

#ifdef __AVX2__
namespace {

constexpr SumFamily kFamily = {SumLoops<Float32>::kKernels, SumLoops<Float16>::kKernels,
                               SumLoops<BFloat16>::kKernels};

}  // namespace

const SumFamily* sums_avx2() {
  return &kFamily;
}

#else

const SumFamily* sums_avx2() {
  return nullptr;
}

#endif

}  // namespace geocomm::collective
