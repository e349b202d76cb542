#include <bit>
#include <cstring>

#include "codec/quantizers/select/select_kernels.h"

namespace geocomm::codec {
namespace {

using core::DType;

std::int32_t magnitude_of(float value) {
  return std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF;
}

template <DType kType, Residual kResidual>
std::size_t collect(const CollectInput& input, float* chunk, float* values, std::uint32_t* places) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < input.count; ++i) {
    const float value = load_value<kType, kResidual>(input.src, input.residual, input.decay, i);
    chunk[i] = value;
    store_residual<kResidual>(input.residual, i, value, 0.0f);
    values[found] = value;
    places[found] = input.first_place + static_cast<std::uint32_t>(i);
    found += static_cast<std::size_t>(magnitude_of(value) > input.above);
  }
  return found;
}

std::size_t count_above(const float* values, std::size_t count, std::int32_t magnitude) {
  std::int32_t above = 0;
  for (std::size_t i = 0; i < count; ++i) {
    above += static_cast<std::int32_t>(magnitude_of(values[i]) > magnitude);
  }
  return static_cast<std::size_t>(above);
}

std::size_t write_gaps(const std::uint32_t* places, std::size_t count, std::uint32_t previous,
                       std::byte* gaps) {
  std::byte* to = gaps;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t rest = places[i] - previous - 1;
    for (; rest >= 255; rest -= 255) *to++ = std::byte{255};
    *to++ = static_cast<std::byte>(rest);
    previous = places[i];
  }
  return static_cast<std::size_t>(to - gaps);
}

constexpr SelectKernels make_table() {
  SelectKernels table{{}, count_above, write_gaps};
  for_each_compressible([&]<DType kType>() {
    for_each_residual([&]<Residual kResidual>() {
      table.collect[compressible_index(kType)][static_cast<std::size_t>(kResidual)] =
          collect<kType, kResidual>;
    });
  });
  return table;
}
}  // namespace

constinit const SelectKernels SelectKernels::kScalar = make_table();

}  // namespace geocomm::codec
