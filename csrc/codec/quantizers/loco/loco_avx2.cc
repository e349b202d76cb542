#include "codec/quantizers/loco/loco_kernels.h"

#ifdef __AVX2__

#include "codec/quantizers/loco/loco_simd.h"
#include "codec/simd/vector_avx2.h"

namespace geocomm::codec {
namespace {

constexpr LocoKernels kKernels = make_loco_kernels<Avx2>();

}  // namespace

const LocoKernels* loco_kernels_avx2() {
  return &kKernels;
}

}  // namespace geocomm::codec

#else

namespace geocomm::codec {

const LocoKernels* loco_kernels_avx2() {
  return nullptr;
}

}  // namespace geocomm::codec

#endif
