// The inner loops of sums and of error feedback for AVX-512.
#include "collective/sums/feedback_loops.h"
#include "collective/sums/float_formats_avx512.h"
#include "collective/sums/sum_loops.h"

namespace geocomm::collective {

constinit const SumFamily SumFamily::kAvx512{SumLoops<Float32>::kKernels, SumLoops<Float16>::kKernels,
                                             SumLoops<BFloat16>::kKernels};
constinit const FeedbackFamily FeedbackFamily::kAvx512{
    FeedbackLoops<Float32>::kKernels, FeedbackLoops<Float16>::kKernels, FeedbackLoops<BFloat16>::kKernels};

}  // namespace geocomm::collective
