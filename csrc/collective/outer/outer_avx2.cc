// The inner loops of local steps for AVX2.
#include "codec/simd/vector_avx2.h"
#include "collective/outer/outer_simd.h"

namespace geocomm::collective {

constinit const OuterKernels OuterKernels::kAvx2 = kOuterLoops<codec::Avx2>;

}  // namespace geocomm::collective
