// The quantizers' inner loops for NEON.
#include "codec/quantizers/block/block_simd.h"
#include "codec/quantizers/cast/cast_simd.h"
#include "codec/quantizers/dead_zone/dead_zone_simd.h"
#include "codec/quantizers/lossless/lossless_simd.h"
#include "codec/quantizers/select/select_simd.h"
#include "codec/simd/vector_neon.h"

namespace geocomm::codec {

constinit const BlockKernels BlockKernels::kNeon = make_block_kernels<BlockLoops<Neon>>();
constinit const CastKernels CastKernels::kNeon = make_cast_kernels<CastLoops<Neon>>();
constinit const DeadZoneKernels DeadZoneKernels::kNeon = kDeadZoneLoops<Neon>;
constinit const LosslessKernels LosslessKernels::kNeon = kLosslessLoops<Neon>;
constinit const SelectKernels SelectKernels::kNeon = kSelectLoops<Neon>;

}  // namespace geocomm::codec
