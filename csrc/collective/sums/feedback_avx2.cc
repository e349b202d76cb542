#include "collective/sums/feedback_kernels.h"

#ifdef __AVX2__
#include "collective/sums/feedback_loops.h"
#include "collective/sums/float_formats_avx2.h"
#endif

namespace geocomm::collective {

#ifdef __AVX2__
namespace {

constexpr FeedbackFamily kFamily = {FeedbackLoops<Float32>::kKernels, FeedbackLoops<Float16>::kKernels,
                                    FeedbackLoops<BFloat16>::kKernels};

}  // namespace

const FeedbackFamily* feedback_avx2() {
  return &kFamily;
}

#else

const FeedbackFamily* feedback_avx2() {
  return nullptr;
}

#endif

}  // namespace geocomm::collective
