// The quantizers' inner loops for AVX-512.
#include "codec/quantizers/block/block_simd.h"
#include "codec/quantizers/cast/cast_simd.h"
#include "codec/quantizers/dead_zone/dead_zone_simd.h"
#include "codec/quantizers/loco/loco_avx.h"
#include "codec/quantizers/lossless/lossless_simd.h"
#include "codec/quantizers/select/select_simd.h"
#include "codec/simd/vector_avx512.h"

namespace geocomm::codec {

constinit const BlockKernels BlockKernels::kAvx512 = make_block_kernels<BlockLoops<Avx512>>();
constinit const CastKernels CastKernels::kAvx512 = make_cast_kernels<CastLoops<Avx512>>();
constinit const DeadZoneKernels DeadZoneKernels::kAvx512 = kDeadZoneLoops<Avx512>;
constinit const LocoKernels LocoKernels::kAvx512 = make_loco_kernels<Avx512>();
constinit const LosslessKernels LosslessKernels::kAvx512 = kLosslessLoops<Avx512>;
constinit const SelectKernels SelectKernels::kAvx512 = kSelectLoops<Avx512>;

}  // namespace geocomm::codec
