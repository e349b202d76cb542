// The quantizers' inner loops for AVX2.
#include "codec/quantizers/block/block_simd.h"
#include "codec/quantizers/cast/cast_simd.h"
#include "codec/quantizers/dead_zone/dead_zone_simd.h"
#include "codec/quantizers/loco/loco_avx.h"
#include "codec/quantizers/lossless/lossless_simd.h"
#include "codec/quantizers/select/select_simd.h"
#include "codec/simd/vector_avx2.h"

namespace geocomm::codec {

constinit const BlockKernels BlockKernels::kAvx2 = make_block_kernels<BlockLoops<Avx2>>();
constinit const CastKernels CastKernels::kAvx2 = make_cast_kernels<CastLoops<Avx2>>();
constinit const DeadZoneKernels DeadZoneKernels::kAvx2 = kDeadZoneLoops<Avx2>;
constinit const LocoKernels LocoKernels::kAvx2 = make_loco_kernels<Avx2>();
constinit const LosslessKernels LosslessKernels::kAvx2 = kLosslessLoops<Avx2>;
constinit const SelectKernels SelectKernels::kAvx2 = kSelectLoops<Avx2>;

}  // namespace geocomm::codec
