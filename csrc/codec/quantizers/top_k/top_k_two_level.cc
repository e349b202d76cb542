#include "codec/quantizers/top_k/top_k_two_level.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "codec/frames/elements.h"
#include "codec/frames/frame.h"
#include "codec/quantizers/block/block_layout.h"
#include "core/half.h"

namespace geocomm::codec {
namespace {

using core::Status;

// Levels of all blocks | codes of all blocks | raw blocks.
constexpr std::size_t kPerByte = 4;
struct Levels {
  std::uint16_t low;   // bf16, kRawScale: the block is raw
  std::uint16_t high;  // bf16
};
static_assert(sizeof(Levels) == 4);

struct Layout {
  std::size_t count;

  std::size_t blocks() const { return (count + kTwoLevelBlock - 1) / kTwoLevelBlock; }
  std::size_t length(std::size_t block) const {
    return std::min(kTwoLevelBlock, count - block * kTwoLevelBlock);
  }
  std::size_t levels_offset(std::size_t block) const { return block * sizeof(Levels); }
  std::size_t codes_offset(std::size_t block) const {
    return blocks() * sizeof(Levels) + block * (kTwoLevelBlock / kPerByte);
  }
  std::size_t raw_offset() const { return blocks() * sizeof(Levels) + (count + kPerByte - 1) / kPerByte; }
};

using Block = std::array<float, kTwoLevelBlock>;

// The sum whose order no machine can choose: 128 partial sums, folded by halves.
float sum_of(const Block& terms) {
  constexpr std::size_t kSums = 128;
  std::array<float, kSums> sums{};
  for (std::size_t i = 0; i < kTwoLevelBlock; i += kSums) {
    for (std::size_t j = 0; j < kSums; ++j) sums[j] += terms[i + j];
  }
  for (std::size_t half = kSums / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// A block of finite values and what it is cut into.
struct Split {
  Levels levels{};
  std::array<std::uint8_t, kTwoLevelBlock> is_high;  // 0 or 1

  Split(const Block& magnitudes, std::size_t length, float peak) {
    // In units of the peak's power of two, so that nothing overflows.
    const int exponent = std::clamp(static_cast<int>(std::bit_cast<std::uint32_t>(peak) >> 23), 1, 253) - 127;
    const float down = power_of_two(-exponent);
    const float up = power_of_two(exponent);
    Block scaled;
    for (std::size_t i = 0; i < kTwoLevelBlock; ++i) scaled[i] = magnitudes[i] * down;
    const float mean = sum_of(scaled) / static_cast<float>(length);
    Block low{};
    Block high{};
    int above = 0;
    for (std::size_t i = 0; i < length; ++i) {
      const bool is_above = scaled[i] >= mean;
      const auto bits = std::bit_cast<std::uint32_t>(scaled[i]);
      is_high[i] = static_cast<std::uint8_t>(is_above);
      high[i] = std::bit_cast<float>(core::select_bits(is_above, bits, 0));
      low[i] = std::bit_cast<float>(core::select_bits(is_above, 0, bits));
      above += static_cast<int>(is_above);
    }
    levels.low = level_of(low, static_cast<int>(length) - above, up);
    levels.high = level_of(high, above, up);
  }

 private:
  static std::uint16_t level_of(const Block& part, int members, float up) {
    if (members == 0) return 0;
    return core::float_to_bfloat16_saturated(sum_of(part) / static_cast<float>(members) * up);
  }
};

void encode_block(const float* values, std::size_t length, const Split& split, float* lost,
                  std::byte* codes) {
  const std::array<std::uint32_t, 2> levels = {std::uint32_t{split.levels.low} << 16,
                                               std::uint32_t{split.levels.high} << 16};
  std::memset(codes, 0, (length + kPerByte - 1) / kPerByte);
  for (std::size_t i = 0; i < length; ++i) {
    const std::uint32_t sign = std::bit_cast<std::uint32_t>(values[i]) & core::kFloatSignBit;
    const std::uint32_t code = split.is_high[i] | sign >> 30;
    codes[i / kPerByte] |= static_cast<std::byte>(code << (2 * (i % kPerByte)));
    if (lost != nullptr) lost[i] = values[i] - std::bit_cast<float>(levels[split.is_high[i]] | sign);
  }
}

void decode_block(const Levels& levels, const std::byte* codes, std::size_t length, float* values) {
  const std::array<float, 4> decoded = {
      core::bfloat16_to_float(levels.low), core::bfloat16_to_float(levels.high),
      -core::bfloat16_to_float(levels.low), -core::bfloat16_to_float(levels.high)};
  for (std::size_t i = 0; i < length; ++i) {
    const auto byte = static_cast<unsigned>(codes[i / kPerByte]);
    values[i] = decoded[(byte >> (2 * (i % kPerByte))) & 3];
  }
}

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
    std::byte* codes = dst + layout.codes_offset(index);
    Block magnitudes{};
    std::int32_t peak = 0;
    for (std::size_t i = 0; i < length; ++i) {
      const auto bits = std::bit_cast<std::int32_t>(values[first + i]) & 0x7FFFFFFF;
      magnitudes[i] = std::bit_cast<float>(bits);
      peak = std::max(peak, bits);
    }
    Levels levels{kRawScale, 0};
    if (peak >= static_cast<std::int32_t>(core::kFloatInfBits)) {
      std::memset(codes, 0, (length + kPerByte - 1) / kPerByte);
      std::memcpy(dst + end, values + first, length * sizeof(float));
      end += length * sizeof(float);
      if (lost != nullptr) std::fill_n(lost + first, length, 0.0f);
    } else {
      const Split split(magnitudes, length, std::bit_cast<float>(peak));
      levels = split.levels;
      encode_block(values + first, length, split, lost == nullptr ? nullptr : lost + first, codes);
    }
    std::memcpy(dst + layout.levels_offset(index), &levels, sizeof(levels));
  }
  return end;
}

Status decode_two_level(std::span<const std::byte> coded, std::size_t count, float* values) {
  const Layout layout{count};
  if (coded.size() < layout.raw_offset()) return corrupt_frame("topk values: truncated");
  std::size_t at = layout.raw_offset();
  for (std::size_t index = 0; index < layout.blocks(); ++index) {
    const std::size_t first = index * kTwoLevelBlock;
    const std::size_t length = layout.length(index);
    const auto levels = load_unaligned<Levels>(coded.data() + layout.levels_offset(index));
    if (levels.low == kRawScale) {
      const std::size_t bytes = length * sizeof(float);
      if (coded.size() - at < bytes) return corrupt_frame("topk values: truncated raw block");
      std::memcpy(values + first, coded.data() + at, bytes);
      at += bytes;
    } else if (levels.low > kRawScale || levels.high >= kRawScale) {
      return corrupt_frame("topk values: level out of range");
    } else {
      decode_block(levels, coded.data() + layout.codes_offset(index), length, values + first);
    }
  }
  return at == coded.size() ? Status::ok() : corrupt_frame("topk values: bytes too many");
}

}  // namespace geocomm::codec
