#include "codec/quantizers/lossless/lossless_kernels.h"

#ifdef __AVX512VBMI2__

#include "codec/quantizers/lossless/lossless_simd.h"
#include "codec/simd/vector_avx512.h"

namespace geocomm::codec {
const LosslessKernels* lossless_kernels_avx512() {
  return &kLosslessLoops<Avx512>;
}
}  // namespace geocomm::codec

#else

namespace geocomm::codec {
const LosslessKernels* lossless_kernels_avx512() {
  return nullptr;
}
}  // namespace geocomm::codec

#endif
