// The inner loops of sums and of error feedback for AVX2.
#include "collective/sums/feedback_loops.h"
#include "collective/sums/float_formats_avx2.h"
#include "collective/sums/sum_loops.h"

namespace geocomm::collective {

constinit const SumFamily SumFamily::kAvx2{SumLoops<Float32>::kKernels, SumLoops<Float16>::kKernels,
                                           SumLoops<BFloat16>::kKernels};
constinit const FeedbackFamily FeedbackFamily::kAvx2{
    FeedbackLoops<Float32>::kKernels, FeedbackLoops<Float16>::kKernels, FeedbackLoops<BFloat16>::kKernels};

}  // namespace geocomm::collective
