#include "codec/quantizers/loco/loco_kernels.h"

#ifdef __AVX512VBMI2__

#include "codec/quantizers/loco/loco_simd.h"
#include "codec/simd/vector_avx512.h"

namespace geocomm::codec {
namespace {

constexpr LocoKernels kKernels = make_loco_kernels<Avx512>();

}  // namespace

const LocoKernels* loco_kernels_avx512() {
  return &kKernels;
}

}  // namespace geocomm::codec

#else

namespace geocomm::codec {

const LocoKernels* loco_kernels_avx512() {
  return nullptr;
}

}  // namespace geocomm::codec

#endif
