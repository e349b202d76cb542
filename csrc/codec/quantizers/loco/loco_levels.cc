#include "codec/quantizers/loco/loco_levels.h"

#include <algorithm>
#include <cstring>

#include "codec/quantizers/block/block_kernels.h"
#include "codec/quantizers/block/block_layout.h"
#include "codec/quantizers/block/block_scale.h"
#include "codec/quantizers/loco/loco_kernels.h"

namespace geocomm::codec {
namespace {

std::uint16_t level_of(float sum, std::size_t members, float up) {
  if (members == 0) return 0;
  return core::float_to_bfloat16_saturated(sum / static_cast<float>(members) * up);
}

}  // namespace

LocoLevels encode_levels(LevelBound bound, const float* values, std::size_t count, float* lost,
                         std::byte* codes) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values);
  const BlockKernels& blocks = block_kernels_for(count);
  const std::int32_t peak =
      blocks.load[compressible_index(core::DType::Float32)][static_cast<std::size_t>(Residual::None)](
          bytes, nullptr, 1.0f, count, nullptr);
  if (peak >= static_cast<std::int32_t>(core::kFloatInfBits)) {
    std::memset(codes, 0, loco_code_bytes(count));
    if (lost != nullptr) std::fill_n(lost, count, 0.0f);
    return {kRawScale, 0};
  }
  const MomentRange range = moment_range(peak);
  const LocoKernels& kernels = loco_kernels_for(count);
  const float sum = blocks.sum_magnitudes(bytes, count, range.down);
  const LocoRule rule = bound == LevelBound::Mean
                            ? LocoRule{range.down, 1.0f, sum / static_cast<float>(count)}
                            : LocoRule{range.down, sum, blocks.sum_squares(bytes, count, range.down)};
  const LocoParts parts = kernels.quantize(values, count, rule, codes);
  const LocoLevels levels{level_of(parts.low, count - parts.high_count, range.up),
                          level_of(parts.high, parts.high_count, range.up)};
  if (lost != nullptr) kernels.subtract(values, codes, count, levels, lost);
  return levels;
}

}  // namespace geocomm::codec
