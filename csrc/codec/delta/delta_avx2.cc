// The inner loop of deltas for AVX2.
#include "codec/delta/delta_simd.h"
#include "codec/simd/vector_avx2.h"

namespace geocomm::codec {

constinit const DeltaKernels DeltaKernels::kAvx2 = kDeltaLoops<Avx2>;

}  // namespace geocomm::codec
