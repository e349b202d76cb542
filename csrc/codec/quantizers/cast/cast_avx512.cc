#include "codec/quantizers/cast/cast_kernels.h"

#ifdef __AVX512VBMI2__

#include "codec/quantizers/cast/cast_simd.h"
#include "codec/simd/vector_avx512.h"

namespace geocomm::codec {
namespace {

constexpr CastKernels kKernels = make_cast_kernels<CastLoops<Avx512>>();

}  // namespace

const CastKernels* cast_kernels_avx512() {
  return &kKernels;
}

}  // namespace geocomm::codec

#else

namespace geocomm::codec {

const CastKernels* cast_kernels_avx512() {
  return nullptr;
}

}  // namespace geocomm::codec

#endif
