// The inner loops of local steps for AVX-512.
#include "codec/simd/vector_avx512.h"
#include "collective/outer/outer_simd.h"

namespace geocomm::collective {

constinit const OuterKernels OuterKernels::kAvx512 = kOuterLoops<codec::Avx512>;

}  // namespace geocomm::collective
