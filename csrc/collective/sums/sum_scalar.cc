#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "codec/frames/elements.h"
#include "collective/sums/sum_kernels.h"
#include "core/half.h"

namespace geocomm::collective {
namespace {

using core::DType;

float added(float sum, float value) {
  const auto sum_bits = std::bit_cast<std::uint32_t>(sum);
  const bool is_nan = (sum_bits & ~core::kFloatSignBit) > core::kFloatInfBits;
  const auto other =
      std::bit_cast<float>(core::select_bits(is_nan, sum_bits, std::bit_cast<std::uint32_t>(value)));
  return core::of_invalid(sum + other, sum, other);
}

template <DType kType>
void widen(const std::byte* elements, float* sums, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sums[i] = codec::load_element<kType>(elements, i);
}

template <DType kType>
void add(const std::byte* elements, float* sums, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sums[i] = added(sums[i], codec::load_element<kType>(elements, i));
}

template <DType kType>
void narrow(const float* sums, std::byte* dst, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) codec::store_rounded<kType>(dst, i, sums[i]);
}

template <>
void narrow<DType::Float32>(const float* sums, std::byte* dst, std::size_t count) {
  if (count > 0) std::memmove(dst, sums, count * sizeof(float));
}

// By tiles that stay in the L1 cache: a tile's sum is complete before it is stored, so dst may be a source.
constexpr std::size_t kTileElements = 1024;

template <DType kType>
void sum(const std::byte* const* sources, std::size_t source_count, std::byte* dst, std::size_t begin,
         std::size_t end, float divisor) {
  constexpr std::size_t kStride = core::size_of(kType);
  std::array<float, kTileElements> tile;
  for (; begin < end; begin += std::min(kTileElements, end - begin)) {
    const std::size_t count = std::min(kTileElements, end - begin);
    widen<kType>(sources[0] + begin * kStride, tile.data(), count);
    for (std::size_t s = 1; s < source_count; ++s) {
      add<kType>(sources[s] + begin * kStride, tile.data(), count);
    }
    if (divisor != 1.0f) {
      for (std::size_t i = 0; i < count; ++i) tile[i] /= divisor;
    }
    narrow<kType>(tile.data(), dst + begin * kStride, count);
  }
}

template <DType kType>
constexpr SumKernels kKernels = {sum<kType>, widen<kType>, add<kType>, narrow<kType>};
}  // namespace

constinit const SumFamily SumFamily::kScalar{
    {kKernels<DType::Float32>, kKernels<DType::Float16>, kKernels<DType::BFloat16>}};

}  // namespace geocomm::collective
