// The inner loops of sums and of error feedback for AVX-512.
#include "codec/simd/vector_avx512.h"
#include "collective/sums/feedback_loops.h"
#include "collective/sums/float_formats_simd.h"
#include "collective/sums/sum_loops.h"

namespace geocomm::collective {

constinit const SumFamily SumFamily::kAvx512 = make_family<SumFamily, codec::Avx512, SumLoops>();
constinit const FeedbackFamily FeedbackFamily::kAvx512 =
    make_family<FeedbackFamily, codec::Avx512, FeedbackLoops>();

}  // namespace geocomm::collective
