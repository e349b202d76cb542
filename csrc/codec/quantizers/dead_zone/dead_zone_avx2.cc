#include "codec/quantizers/dead_zone/dead_zone_kernels.h"

#ifdef __AVX2__

#include "codec/quantizers/dead_zone/dead_zone_simd.h"
#include "codec/simd/vector_avx2.h"

namespace geocomm::codec {
const DeadZoneKernels* dead_zone_kernels_avx2() {
  return &kDeadZoneLoops<Avx2>;
}
}  // namespace geocomm::codec

#else

namespace geocomm::codec {
const DeadZoneKernels* dead_zone_kernels_avx2() {
  return nullptr;
}
}  // namespace geocomm::codec

#endif
