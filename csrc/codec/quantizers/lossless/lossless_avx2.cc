#include "codec/quantizers/lossless/lossless_kernels.h"

#ifdef __AVX2__

#include "codec/quantizers/lossless/lossless_simd.h"
#include "codec/simd/vector_avx2.h"

namespace geocomm::codec {
const LosslessKernels* lossless_kernels_avx2() {
  return &kLosslessLoops<Avx2>;
}
}  // namespace geocomm::codec

#else

namespace geocomm::codec {
const LosslessKernels* lossless_kernels_avx2() {
  return nullptr;
}
}  // namespace geocomm::codec

#endif
