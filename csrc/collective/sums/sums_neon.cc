// The inner loops of sums and of error feedback for NEON.
#include "codec/simd/vector_neon.h"
#include "collective/sums/feedback_loops.h"
#include "collective/sums/float_formats_simd.h"
#include "collective/sums/sum_loops.h"

namespace geocomm::collective {

constinit const SumFamily SumFamily::kNeon = make_family<SumFamily, codec::Neon, SumLoops>();
constinit const FeedbackFamily FeedbackFamily::kNeon =
    make_family<FeedbackFamily, codec::Neon, FeedbackLoops>();

}  // namespace geocomm::collective
