// The inner loops of local steps for NEON.
#include "codec/simd/vector_neon.h"
#include "collective/outer/outer_simd.h"

namespace geocomm::collective {

constinit const OuterKernels OuterKernels::kNeon = kOuterLoops<codec::Neon>;

}  // namespace geocomm::collective
