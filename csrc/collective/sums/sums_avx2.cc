// The inner loops of sums and of error feedback for AVX2.
#include "codec/simd/vector_avx2.h"
#include "collective/sums/feedback_loops.h"
#include "collective/sums/float_formats_simd.h"
#include "collective/sums/sum_loops.h"

namespace geocomm::collective {

constinit const SumFamily SumFamily::kAvx2 = make_family<SumFamily, codec::Avx2, SumLoops>();
constinit const FeedbackFamily FeedbackFamily::kAvx2 =
    make_family<FeedbackFamily, codec::Avx2, FeedbackLoops>();

}  // namespace geocomm::collective
