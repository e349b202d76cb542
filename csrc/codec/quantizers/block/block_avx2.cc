#include "codec/quantizers/block/block_kernels.h"

#ifdef __AVX2__

#include "codec/quantizers/block/block_simd.h"
#include "codec/simd/vector_avx2.h"

namespace geocomm::codec {
namespace {

constexpr BlockKernels kKernels = make_block_kernels<BlockLoops<Avx2>>();

}  // namespace

const BlockKernels* block_kernels_avx2() {
  return &kKernels;
}

}  // namespace geocomm::codec

#else

namespace geocomm::codec {

const BlockKernels* block_kernels_avx2() {
  return nullptr;
}

}  // namespace geocomm::codec

#endif
