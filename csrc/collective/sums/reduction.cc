#include "collective/sums/reduction.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "codec/frames/elements.h"
#include "collective/sums/sum_kernels.h"
#include "core/cpu.h"
#include "core/float_rules.h"
#include "core/half.h"
#include "core/str.h"

namespace geocomm::collective {

using core::DType;
using core::Status;
using core::StatusCode;

namespace {

// How elements of a dtype lie in memory, and in what they are computed.
template <typename T>
struct Plain {
  using Acc = T;
  static constexpr std::size_t kBytes = sizeof(T);
  static T load(const std::byte* base, std::size_t index) {
    return codec::load_unaligned<T>(base + index * kBytes);
  }
  static void store(std::byte* base, std::size_t index, T value) {
    std::memcpy(base + index * kBytes, &value, kBytes);
  }
};

template <DType kType>
struct InFloat {
  using Acc = float;
  static constexpr std::size_t kBytes = core::size_of(kType);
  static float load(const std::byte* base, std::size_t index) {
    return codec::load_element<kType>(base, index);
  }
  static void store(std::byte* base, std::size_t index, float value) {
    codec::store_rounded<kType>(base, index, value);
  }
};

// 0 or 1. A sum of them is their bitwise or; all else is as for other integers.
struct Truth : Plain<std::uint8_t> {
  static std::uint8_t load(const std::byte* base, std::size_t index) { return base[index] != std::byte{0}; }
};

// Integers wrap around: computed unsigned and at least as wide as unsigned int, since narrower types are
// promoted to int, which overflows.
template <typename T>
using Wrapping = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;

template <typename Operator>
struct WrappingAround {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(Operator{}(static_cast<Wrapping<T>>(a), static_cast<Wrapping<T>>(b)));
    } else {
      return core::of_invalid(Operator{}(a, b), a, b);
    }
  }
};
using Add = WrappingAround<std::plus<>>;
using Multiply = WrappingAround<std::multiplies<>>;

// spec operations 5.2: "min and max MUST yield NaN if an operand is NaN."
template <typename GoesBefore>
struct Extreme {
  template <typename T>
  T operator()(T a, T b) const {
    const T first = GoesBefore{}(b, a) ? b : a;  // a, if one is NaN
    if constexpr (std::is_integral_v<T>) return first;
    return b != b ? b : first;
  }
};
using Minimum = Extreme<std::less<>>;
using Maximum = Extreme<std::greater<>>;

// Integers: towards zero, as NCCL's mean of them.
template <typename T>
T quotient(T sum, int by) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::int64_t>(sum) / by);
  } else {
    return sum / static_cast<T>(by);
  }
}

// By tiles that stay in the L1 cache: a tile's sum is complete before it is stored, so dst may be a source.
constexpr std::size_t kTileElements = 1024;

template <typename Element, typename Op>
void reduce_tiles(std::span<const std::byte* const> sources, std::byte* dst, std::size_t elements,
                  int divisor) {
  using Acc = typename Element::Acc;
  constexpr std::size_t kStride = Element::kBytes;
  std::array<Acc, kTileElements> tile;
  for (std::size_t begin = 0; begin < elements; begin += kTileElements) {
    const std::size_t count = std::min(kTileElements, elements - begin);
    const std::byte* first = sources.front() + begin * kStride;
    for (std::size_t i = 0; i < count; ++i) tile[i] = Element::load(first, i);
    for (const std::byte* source : sources.subspan(1)) {
      const std::byte* from = source + begin * kStride;
      for (std::size_t i = 0; i < count; ++i) {
        tile[i] = static_cast<Acc>(Op{}(tile[i], Element::load(from, i)));
      }
    }
    if (divisor != 1) {
      for (std::size_t i = 0; i < count; ++i) tile[i] = quotient(tile[i], divisor);
    }
    std::byte* to = dst + begin * kStride;
    for (std::size_t i = 0; i < count; ++i) Element::store(to, i, tile[i]);
  }
}

template <typename Element>
void reduce_as(ReduceOp op, std::span<const std::byte* const> sources, std::byte* dst, std::size_t elements,
               int divisor) {
  constexpr bool kFloating = std::is_floating_point_v<typename Element::Acc>;
  const int by = op == ReduceOp::Avg ? divisor : 1;
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Avg:
      return reduce_tiles<Element, Add>(sources, dst, elements, by);
    case ReduceOp::Product:
      return reduce_tiles<Element, Multiply>(sources, dst, elements, by);
    case ReduceOp::Min:
      return reduce_tiles<Element, Minimum>(sources, dst, elements, by);
    case ReduceOp::Max:
      return reduce_tiles<Element, Maximum>(sources, dst, elements, by);
    case ReduceOp::BitAnd:
      if constexpr (!kFloating) return reduce_tiles<Element, std::bit_and<>>(sources, dst, elements, by);
      return;
    case ReduceOp::BitOr:
      if constexpr (!kFloating) return reduce_tiles<Element, std::bit_or<>>(sources, dst, elements, by);
      return;
    case ReduceOp::BitXor:
      if constexpr (!kFloating) return reduce_tiles<Element, std::bit_xor<>>(sources, dst, elements, by);
      return;
  }
}

// Of a dtype that is summed in float.
const SumKernels& sum_kernels(DType dtype) {
  return core::at_cpu_level<SumFamily>().formats[codec::compressible_index(dtype)];
}

}  // namespace

Status check_reduction(DType dtype, ReduceOp op) {
  const bool bitwise = op == ReduceOp::BitAnd || op == ReduceOp::BitOr || op == ReduceOp::BitXor;
  if (core::is_floating(dtype) ? bitwise : dtype == DType::Bool && op == ReduceOp::Avg) {
    return {StatusCode::InvalidArgument,
            core::str("reduction ", to_string(op), " of ", core::to_string(dtype),
                      ": floats take sum, avg, product, min, max; integers all; bools all but avg")};
  }
  if (static_cast<std::uint8_t>(op) > static_cast<std::uint8_t>(ReduceOp::BitXor)) {
    return {StatusCode::InvalidArgument, core::str("reduction number ", static_cast<int>(op), " is unknown")};
  }
  return Status::ok();
}

void reduce_elements(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::byte* dst,
                     std::size_t elements, int divisor) {
  const core::FloatRules rules;
  if (core::is_compressible(dtype) && (op == ReduceOp::Sum || op == ReduceOp::Avg)) {
    const float by = op == ReduceOp::Avg ? static_cast<float>(divisor) : 1.0f;
    return sum_kernels(dtype).sum(sources.data(), sources.size(), dst, 0, elements, by);
  }
  switch (dtype) {
    case DType::Float32:
      return reduce_as<Plain<float>>(op, sources, dst, elements, divisor);
    case DType::Float64:
      return reduce_as<Plain<double>>(op, sources, dst, elements, divisor);
    case DType::Float16:
      return reduce_as<InFloat<DType::Float16>>(op, sources, dst, elements, divisor);
    case DType::BFloat16:
      return reduce_as<InFloat<DType::BFloat16>>(op, sources, dst, elements, divisor);
    case DType::Int8:
      return reduce_as<Plain<std::int8_t>>(op, sources, dst, elements, divisor);
    case DType::UInt8:
      return reduce_as<Plain<std::uint8_t>>(op, sources, dst, elements, divisor);
    case DType::Int16:
      return reduce_as<Plain<std::int16_t>>(op, sources, dst, elements, divisor);
    case DType::Int32:
      return reduce_as<Plain<std::int32_t>>(op, sources, dst, elements, divisor);
    case DType::Int64:
      return reduce_as<Plain<std::int64_t>>(op, sources, dst, elements, divisor);
    case DType::Bool:
      return reduce_as<Truth>(op == ReduceOp::Sum ? ReduceOp::BitOr : op, sources, dst, elements, divisor);
  }
}

void accumulate_elements(DType dtype, const std::byte* elements, std::span<float> sums,
                         codec::Accumulate mode) {
  const core::FloatRules rules;
  const SumKernels& kernels = sum_kernels(dtype);
  (mode == codec::Accumulate::Assign ? kernels.widen : kernels.add)(elements, sums.data(), sums.size());
}

void divide(std::span<float> sums, int divisor) {
  if (divisor == 1) return;
  const core::FloatRules rules;
  const auto by = static_cast<float>(divisor);
  for (float& sum : sums) sum /= by;
}

void store_sums(DType dtype, std::span<const float> sums, std::byte* dst) {
  const core::FloatRules rules;
  sum_kernels(dtype).narrow(sums.data(), dst, sums.size());
}

}  // namespace geocomm::collective
