// The inner loop of deltas for NEON.
#include "codec/delta/delta_simd.h"
#include "codec/simd/vector_neon.h"

namespace geocomm::codec {

constinit const DeltaKernels DeltaKernels::kNeon = kDeltaLoops<Neon>;

}  // namespace geocomm::codec
