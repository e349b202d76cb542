#include "codec/quantizers/dead_zone/dead_zone_kernels.h"

#ifdef __AVX512VBMI2__

#include "codec/quantizers/dead_zone/dead_zone_simd.h"
#include "codec/simd/vector_avx512.h"

namespace geocomm::codec {
const DeadZoneKernels* dead_zone_kernels_avx512() {
  return &kDeadZoneLoops<Avx512>;
}
}  // namespace geocomm::codec

#else

namespace geocomm::codec {
const DeadZoneKernels* dead_zone_kernels_avx512() {
  return nullptr;
}
}  // namespace geocomm::codec

#endif
