#include "collective/sums/reduction.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

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

// How a dtype lies in memory, and what it is computed in.
template <typename Stored, typename Value>
struct PlainElement {
  using Storage = Stored;
  using Acc = Value;
  static Acc load(Storage stored) { return static_cast<Acc>(stored); }
  static Storage store(Acc value) { return static_cast<Storage>(value); }
};
template <typename T>
using Plain = PlainElement<T, T>;

struct HalfElement {
  using Storage = std::uint16_t;
  using Acc = float;
  static Acc load(Storage stored) { return core::half_to_float(stored); }
  static Storage store(Acc value) { return core::float_to_half(value); }
};

struct BFloat16Element {
  using Storage = std::uint16_t;
  using Acc = float;
  static Acc load(Storage stored) { return core::bfloat16_to_float(stored); }
  static Storage store(Acc value) { return core::float_to_bfloat16(value); }
};

// The bits of a bool: a type of its own, so that operators can tell it from UInt8.
struct Truth {
  std::uint8_t bit;
};
struct BoolElement {
  using Storage = std::uint8_t;
  using Acc = Truth;
  static Acc load(Storage stored) { return {static_cast<std::uint8_t>(stored != 0)}; }
  static Storage store(Acc value) { return value.bit; }
};

// Integers wrap around: computed unsigned and at least as wide as unsigned int, since narrower types are
// promoted to int, which overflows.
template <typename T>
using Wrapping = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;

struct Add {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_same_v<T, Truth>) {
      return {static_cast<std::uint8_t>(a.bit | b.bit)};
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    } else {
      return a + b;
    }
  }
};

struct Multiply {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_same_v<T, Truth>) {
      return {static_cast<std::uint8_t>(a.bit & b.bit)};
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    } else {
      return a * b;
    }
  }
};

// spec operations 5.2: "min and max MUST yield NaN if an operand is NaN."
struct Minimum {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_same_v<T, Truth>) {
      return {static_cast<std::uint8_t>(a.bit & b.bit)};
    } else if constexpr (std::is_integral_v<T>) {
      return b < a ? b : a;
    } else {
      const T smaller = b < a ? b : a;  // a, if one is NaN
      return b != b ? b : smaller;
    }
  }
};

struct Maximum {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_same_v<T, Truth>) {
      return {static_cast<std::uint8_t>(a.bit | b.bit)};
    } else if constexpr (std::is_integral_v<T>) {
      return a < b ? b : a;
    } else {
      const T larger = a < b ? b : a;
      return b != b ? b : larger;
    }
  }
};

struct And {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_same_v<T, Truth>) {
      return {static_cast<std::uint8_t>(a.bit & b.bit)};
    } else {
      return static_cast<T>(a & b);
    }
  }
};

struct Or {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_same_v<T, Truth>) {
      return {static_cast<std::uint8_t>(a.bit | b.bit)};
    } else {
      return static_cast<T>(a | b);
    }
  }
};

struct Xor {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_same_v<T, Truth>) {
      return {static_cast<std::uint8_t>(a.bit ^ b.bit)};
    } else {
      return static_cast<T>(a ^ b);
    }
  }
};

template <typename Element>
typename Element::Acc load_at(const std::byte* base, std::size_t index) {
  typename Element::Storage stored;
  std::memcpy(&stored, base + index * sizeof(stored), sizeof(stored));
  return Element::load(stored);
}

template <typename Element>
void store_at(std::byte* base, std::size_t index, typename Element::Acc value) {
  const typename Element::Storage stored = Element::store(value);
  std::memcpy(base + index * sizeof(stored), &stored, sizeof(stored));
}

// Integers: towards zero, as NCCL's mean of them.
template <typename T>
T quotient(T sum, int by) {
  if constexpr (std::is_same_v<T, Truth>) {
    return sum;
  } else if constexpr (std::is_integral_v<T>) {
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
  constexpr std::size_t kStride = sizeof(typename Element::Storage);
  std::array<Acc, kTileElements> tile;
  for (std::size_t begin = 0; begin < elements; begin += kTileElements) {
    const std::size_t count = std::min(kTileElements, elements - begin);
    const std::byte* first = sources.front() + begin * kStride;
    for (std::size_t i = 0; i < count; ++i) tile[i] = load_at<Element>(first, i);
    for (const std::byte* source : sources.subspan(1)) {
      const std::byte* from = source + begin * kStride;
      for (std::size_t i = 0; i < count; ++i) tile[i] = Op::apply(tile[i], load_at<Element>(from, i));
    }
    if (divisor != 1) {
      for (std::size_t i = 0; i < count; ++i) tile[i] = quotient(tile[i], divisor);
    }
    std::byte* to = dst + begin * kStride;
    for (std::size_t i = 0; i < count; ++i) store_at<Element>(to, i, tile[i]);
  }
}

template <typename Element>
void reduce_as(ReduceOp op, std::span<const std::byte* const> sources, std::byte* dst, std::size_t elements,
               int divisor) {
  constexpr bool kFloating = std::is_floating_point_v<typename Element::Acc>;
  switch (op) {
    case ReduceOp::Sum:
      return reduce_tiles<Element, Add>(sources, dst, elements, 1);
    case ReduceOp::Avg:
      return reduce_tiles<Element, Add>(sources, dst, elements, divisor);
    case ReduceOp::Product:
      return reduce_tiles<Element, Multiply>(sources, dst, elements, 1);
    case ReduceOp::Min:
      return reduce_tiles<Element, Minimum>(sources, dst, elements, 1);
    case ReduceOp::Max:
      return reduce_tiles<Element, Maximum>(sources, dst, elements, 1);
    case ReduceOp::BitAnd:
      if constexpr (!kFloating) return reduce_tiles<Element, And>(sources, dst, elements, 1);
      return;
    case ReduceOp::BitOr:
      if constexpr (!kFloating) return reduce_tiles<Element, Or>(sources, dst, elements, 1);
      return;
    case ReduceOp::BitXor:
      if constexpr (!kFloating) return reduce_tiles<Element, Xor>(sources, dst, elements, 1);
      return;
  }
}

// null: summed in another type than float.
const SumKernels* sum_kernels(DType dtype) {
  const SumFamily& family = core::at_cpu_level<SumFamily>();
  switch (dtype) {
    case DType::Float32:
      return &family.float32;
    case DType::Float16:
      return &family.float16;
    case DType::BFloat16:
      return &family.bfloat16;
    default:
      return nullptr;
  }
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
  const SumKernels* const kernels = sum_kernels(dtype);
  if (kernels != nullptr && (op == ReduceOp::Sum || op == ReduceOp::Avg)) {
    const float by = op == ReduceOp::Avg ? static_cast<float>(divisor) : 1.0f;
    return kernels->sum(sources.data(), sources.size(), dst, 0, elements, by);
  }
  switch (dtype) {
    case DType::Float32:
      return reduce_as<Plain<float>>(op, sources, dst, elements, divisor);
    case DType::Float64:
      return reduce_as<Plain<double>>(op, sources, dst, elements, divisor);
    case DType::Float16:
      return reduce_as<HalfElement>(op, sources, dst, elements, divisor);
    case DType::BFloat16:
      return reduce_as<BFloat16Element>(op, sources, dst, elements, divisor);
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
      return reduce_as<BoolElement>(op, sources, dst, elements, divisor);
  }
}

void accumulate_elements(DType dtype, const std::byte* elements, std::span<float> sums,
                         codec::Accumulate mode) {
  const core::FloatRules rules;
  const SumKernels& kernels = *sum_kernels(dtype);
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
  sum_kernels(dtype)->narrow(sums.data(), dst, sums.size());
}

}  // namespace geocomm::collective
