// The reference: what every other table of CastKernels equals bit for bit.
#include <bit>
#include <cstring>

#include "codec/quantizers/cast/cast_kernels.h"

namespace geocomm::codec {
namespace {

using core::DType;

// Signed compares: SSE2 has no others.
bool overflows(float value, std::int32_t first_too_large) {
  const std::int32_t magnitude = std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF;
  return (magnitude >= first_too_large) & (magnitude < static_cast<std::int32_t>(core::kFloatInfBits));
}

template <DType kType, Residual kResidual>
bool all_fit(const std::byte* src, const std::byte* residual, float decay, std::size_t count,
             std::int32_t first_too_large) {
  std::int32_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    bad |= static_cast<std::int32_t>(
        overflows(load_value<kType, kResidual>(src, residual, decay, i), first_too_large));
  }
  return bad == 0;
}

template <DType kFormat, DType kType, Residual kResidual>
bool encode(const std::byte* __restrict src, std::byte* __restrict residual, float decay, std::size_t count,
            std::byte* __restrict words) {
  std::int32_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load_value<kType, kResidual>(src, residual, decay, i);
    bad |= static_cast<std::int32_t>(overflows(value, first_too_large(kFormat)));
    const std::uint16_t bits = narrow<kFormat>(value);
    std::memcpy(words + 2 * i, &bits, 2);
    store_residual<kResidual>(residual, i, value, widen<kFormat>(bits));
  }
  return bad == 0;
}

template <DType kFormat, Sink kSink>
void decode(const std::byte* __restrict words, std::size_t count, std::byte* __restrict dst) {
  for (std::size_t i = 0; i < count; ++i) put<kSink>(dst, i, load_element<kFormat>(words, i));
}

void split(const std::byte* __restrict words, std::size_t count, std::byte* __restrict high,
           std::byte* __restrict low) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto rotated = std::rotl(load_unaligned<std::uint16_t>(words + 2 * i), 1);
    high[i] = static_cast<std::byte>(rotated >> 8);
    low[i] = static_cast<std::byte>(rotated & 0xFF);
  }
}

void join(const std::byte* __restrict high, const std::byte* __restrict low, std::size_t count,
          std::byte* __restrict words) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto rotated =
        static_cast<std::uint16_t>(static_cast<unsigned>(high[i]) << 8 | static_cast<unsigned>(low[i]));
    const std::uint16_t word = std::rotr(rotated, 1);
    std::memcpy(words + 2 * i, &word, 2);
  }
}

struct Loops {
  template <DType kType, Residual kResidual>
  static constexpr CastKernels::AllFit kAllFit = all_fit<kType, kResidual>;
  template <DType kFormat, DType kType, Residual kResidual>
  static constexpr CastKernels::Encode kEncode = encode<kFormat, kType, kResidual>;
  template <DType kFormat, Sink kSink>
  static constexpr CastKernels::Decode kDecode = decode<kFormat, kSink>;
  static constexpr CastKernels::Split kSplit = split;
  static constexpr CastKernels::Join kJoin = join;
};

}  // namespace

constinit const CastKernels CastKernels::kScalar = make_cast_kernels<Loops>();

}  // namespace geocomm::codec
