#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "collective/sums/float_formats_scalar.h"
#include "collective/sums/sum_kernels.h"

namespace geocomm::collective {
namespace {

float added(float sum, float value) {
  const auto sum_bits = std::bit_cast<std::uint32_t>(sum);
  const bool is_nan = (sum_bits & ~core::kFloatSignBit) > core::kFloatInfBits;
  return sum + std::bit_cast<float>(core::select_bits(is_nan, sum_bits, std::bit_cast<std::uint32_t>(value)));
}

template <typename Format>
void widen(const std::byte* elements, float* sums, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sums[i] = load_at<Format>(elements, i);
}

template <typename Format>
void add(const std::byte* elements, float* sums, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sums[i] = added(sums[i], load_at<Format>(elements, i));
}

template <typename Format>
void narrow(const float* sums, std::byte* dst, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) store_at<Format>(dst, i, sums[i]);
}

template <>
void narrow<Float32>(const float* sums, std::byte* dst, std::size_t count) {
  if (count > 0) std::memmove(dst, sums, count * sizeof(float));
}

// By tiles that stay in the L1 cache: a tile's sum is complete before it is stored, so dst may be a source.
constexpr std::size_t kTileElements = 1024;

template <typename Format>
void sum(const std::byte* const* sources, std::size_t source_count, std::byte* dst, std::size_t begin,
         std::size_t end, float divisor) {
  constexpr std::size_t kStride = sizeof(typename Format::Storage);
  std::array<float, kTileElements> tile;
  for (; begin < end; begin += std::min(kTileElements, end - begin)) {
    const std::size_t count = std::min(kTileElements, end - begin);
    widen<Format>(sources[0] + begin * kStride, tile.data(), count);
    for (std::size_t s = 1; s < source_count; ++s) {
      add<Format>(sources[s] + begin * kStride, tile.data(), count);
    }
    if (divisor != 1.0f) {
      for (std::size_t i = 0; i < count; ++i) tile[i] /= divisor;
    }
    narrow<Format>(tile.data(), dst + begin * kStride, count);
  }
}

template <typename Format>
constexpr SumKernels kKernels = {sum<Format>, widen<Format>, add<Format>, narrow<Format>};
}  // namespace

constinit const SumFamily SumFamily::kScalar{kKernels<Float32>, kKernels<Float16>, kKernels<BFloat16>};

}  // namespace geocomm::collective
