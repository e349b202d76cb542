// The inner loop of deltas for AVX-512.
#include "codec/delta/delta_simd.h"
#include "codec/simd/vector_avx512.h"

namespace geocomm::codec {

constinit const DeltaKernels DeltaKernels::kAvx512 = kDeltaLoops<Avx512>;

}  // namespace geocomm::codec
