#include "codec/quantizers/top_k/top_k_two_level.h"

#include <algorithm>
#include <cstring>

#include "codec/frames/elements.h"
#include "codec/frames/frame.h"
#include "codec/quantizers/block/block_layout.h"
#include "codec/quantizers/loco/loco_kernels.h"
#include "codec/quantizers/loco/loco_levels.h"

namespace geocomm::codec {
namespace {

using core::Status;

// Levels of all blocks | codes of all blocks | raw blocks.
struct Layout {
  std::size_t count;

  std::size_t blocks() const { return (count + kTwoLevelBlock - 1) / kTwoLevelBlock; }
  std::size_t length(std::size_t block) const {
    return std::min(kTwoLevelBlock, count - block * kTwoLevelBlock);
  }
  std::size_t levels_offset(std::size_t block) const { return block * sizeof(LocoLevels); }
  std::size_t codes_offset(std::size_t block) const {
    return levels_offset(blocks()) + block * loco_code_bytes(kTwoLevelBlock);
  }
  std::size_t raw_offset() const { return levels_offset(blocks()) + loco_code_bytes(count); }
};

}  // namespace

std::size_t two_level_bound(std::size_t count) {
  return Layout{count}.raw_offset() + count * sizeof(float);
}

std::size_t encode_two_level(const float* values, std::size_t count, float* lost, std::byte* dst) {
  const Layout layout{count};
  std::size_t end = layout.raw_offset();
  for (std::size_t index = 0; index < layout.blocks(); ++index) {
    const std::size_t first = index * kTwoLevelBlock;
    const std::size_t length = layout.length(index);
    const LocoLevels levels =
        encode_levels(LevelBound::Mean, values + first, length, lost == nullptr ? nullptr : lost + first,
                      dst + layout.codes_offset(index));
    std::memcpy(dst + layout.levels_offset(index), &levels, sizeof(levels));
    if (levels.low != kRawScale) continue;
    std::memcpy(dst + end, values + first, length * sizeof(float));
    end += length * sizeof(float);
  }
  return end;
}

Status decode_two_level(std::span<const std::byte> coded, std::size_t count, float* values) {
  const Layout layout{count};
  if (coded.size() < layout.raw_offset()) return corrupt_frame("topk values: truncated");
  std::size_t at = layout.raw_offset();
  for (std::size_t index = 0; index < layout.blocks(); ++index) {
    float* const to = values + index * kTwoLevelBlock;
    const std::size_t length = layout.length(index);
    const auto levels = load_unaligned<LocoLevels>(coded.data() + layout.levels_offset(index));
    if (levels.low == kRawScale) {
      const std::size_t bytes = length * sizeof(float);
      if (coded.size() - at < bytes) return corrupt_frame("topk values: truncated raw block");
      std::memcpy(to, coded.data() + at, bytes);
      at += bytes;
    } else if (levels.low > kRawScale || levels.high >= kRawScale) {
      return corrupt_frame("topk values: level out of range");
    } else {
      loco_kernels_for(length).decode(coded.data() + layout.codes_offset(index), length, levels, to);
    }
  }
  return at == coded.size() ? Status::ok() : corrupt_frame("topk values: bytes too many");
}

}  // namespace geocomm::codec
