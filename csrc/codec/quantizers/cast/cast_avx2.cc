#include "codec/quantizers/cast/cast_kernels.h"

#ifdef __AVX2__

#include "codec/quantizers/cast/cast_simd.h"
#include "codec/simd/vector_avx2.h"

namespace geocomm::codec {
namespace {

constexpr CastKernels kKernels = make_cast_kernels<CastLoops<Avx2>>();

}  // namespace

const CastKernels* cast_kernels_avx2() {
  return &kKernels;
}

}  // namespace geocomm::codec

#else

namespace geocomm::codec {

const CastKernels* cast_kernels_avx2() {
  return nullptr;
}

}  // namespace geocomm::codec

#endif
