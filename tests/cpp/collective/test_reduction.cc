#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "collective/sums/reduction.h"
#include "element_values.h"

namespace geocomm::collective {
namespace {

using core::DType;
using core::StatusCode;
using testing::all_dtypes;
using testing::random_elements;
using testing::read_as;
using testing::value_at;
using Bytes = std::vector<std::byte>;

constexpr int kOps = 8;

Bytes reduce(DType dtype, ReduceOp op, const std::vector<Bytes>& sources, int divisor = 1) {
  std::vector<const std::byte*> pointers;
  for (const Bytes& source : sources) pointers.push_back(source.data());
  Bytes result(sources.front().size());
  reduce_elements(dtype, op, pointers, result.data(), result.size() / core::size_of(dtype), divisor);
  return result;
}

// One element at a time, in the widest unsigned type or in float/double: the definition.
template <typename T>
T scalar_float(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::Product:
      return a * b;
    case ReduceOp::Min:
      return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : std::min(a, b);
    case ReduceOp::Max:
      return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : std::max(a, b);
    default:
      return a + b;
  }
}

template <typename T>
T scalar_integer(ReduceOp op, T a, T b) {
  const auto x = static_cast<unsigned __int128>(static_cast<__int128>(a));
  const auto y = static_cast<unsigned __int128>(static_cast<__int128>(b));
  switch (op) {
    case ReduceOp::Product:
      return static_cast<T>(x * y);
    case ReduceOp::Min:
      return std::min(a, b);
    case ReduceOp::Max:
      return std::max(a, b);
    case ReduceOp::BitAnd:
      return static_cast<T>(x & y);
    case ReduceOp::BitOr:
      return static_cast<T>(x | y);
    case ReduceOp::BitXor:
      return static_cast<T>(x ^ y);
    default:
      return static_cast<T>(x + y);
  }
}

template <typename T>
void check_integer(DType dtype, ReduceOp op, const std::vector<Bytes>& sources, const Bytes& result,
                   int divisor) {
  for (std::size_t i = 0; i < result.size() / sizeof(T); ++i) {
    T expected = read_as<T>(sources[0], i);
    for (std::size_t s = 1; s < sources.size(); ++s)
      expected = scalar_integer(op, expected, read_as<T>(sources[s], i));
    if (op == ReduceOp::Avg) expected = static_cast<T>(static_cast<__int128>(expected) / divisor);
    ASSERT_EQ(read_as<T>(result, i), expected)
        << core::to_string(dtype) << " " << to_string(op) << " at " << i;
  }
}

template <typename T>
void check_float(DType dtype, ReduceOp op, const std::vector<Bytes>& sources, const Bytes& result,
                 int divisor) {
  for (std::size_t i = 0; i < result.size() / core::size_of(dtype); ++i) {
    T expected = static_cast<T>(value_at(dtype, sources[0], i));
    for (std::size_t s = 1; s < sources.size(); ++s) {
      expected = scalar_float(op, expected, static_cast<T>(value_at(dtype, sources[s], i)));
    }
    if (op == ReduceOp::Avg) expected /= static_cast<T>(divisor);
    Bytes rounded(core::size_of(dtype));
    testing::set_value(dtype, rounded, 0, expected);
    ASSERT_EQ(value_at(dtype, result, i), value_at(dtype, rounded, 0))
        << core::to_string(dtype) << " " << to_string(op) << " at " << i;
  }
}

TEST(ReduceElements, every_dtype_and_op_equals_the_scalar_definition) {
  for (DType dtype : all_dtypes()) {
    for (int number = 0; number < kOps; ++number) {
      const auto op = static_cast<ReduceOp>(number);
      if (!check_reduction(dtype, op).is_ok()) continue;
      for (std::size_t elements : {1u, 7u, 1023u, 1024u, 2500u}) {
        std::vector<Bytes> sources;
        for (std::uint64_t s = 0; s < 4; ++s)
          sources.push_back(random_elements(dtype, elements, s + elements));
        const Bytes result = reduce(dtype, op, sources, 7);
        switch (dtype) {
          case DType::Float64:
            ASSERT_NO_FATAL_FAILURE(check_float<double>(dtype, op, sources, result, 7));
            break;
          case DType::Float32:
          case DType::Float16:
          case DType::BFloat16:
            ASSERT_NO_FATAL_FAILURE(check_float<float>(dtype, op, sources, result, 7));
            break;
          case DType::Int8:
            ASSERT_NO_FATAL_FAILURE(check_integer<std::int8_t>(dtype, op, sources, result, 7));
            break;
          case DType::UInt8:
            ASSERT_NO_FATAL_FAILURE(check_integer<std::uint8_t>(dtype, op, sources, result, 7));
            break;
          case DType::Int16:
            ASSERT_NO_FATAL_FAILURE(check_integer<std::int16_t>(dtype, op, sources, result, 7));
            break;
          case DType::Int32:
            ASSERT_NO_FATAL_FAILURE(check_integer<std::int32_t>(dtype, op, sources, result, 7));
            break;
          case DType::Int64:
            ASSERT_NO_FATAL_FAILURE(check_integer<std::int64_t>(dtype, op, sources, result, 7));
            break;
          case DType::Bool:
            for (std::size_t i = 0; i < elements; ++i) {
              int ones = 0;
              for (const Bytes& source : sources) ones += static_cast<int>(source[i]);
              const bool any = op == ReduceOp::Sum || op == ReduceOp::Max || op == ReduceOp::BitOr;
              const bool expected = op == ReduceOp::BitXor ? ones % 2 == 1 : any ? ones > 0 : ones == 4;
              ASSERT_EQ(static_cast<int>(result[i]), expected ? 1 : 0) << to_string(op);
            }
            break;
        }
      }
    }
  }
}

// spec operations 5.2: "min and max MUST yield NaN if an operand is NaN."
TEST(ReduceElements, min_and_max_with_a_nan_on_either_side_are_nan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (DType dtype : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16}) {
    for (ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
      for (std::size_t where : {0u, 1u, 2u}) {
        std::vector<Bytes> sources(3, Bytes(core::size_of(dtype)));
        for (std::size_t s = 0; s < 3; ++s) testing::set_value(dtype, sources[s], 0, s == where ? nan : 1.0);
        EXPECT_TRUE(std::isnan(value_at(dtype, reduce(dtype, op, sources), 0)));
      }
    }
  }
}

TEST(ReduceElements, bool_bytes_other_than_one_count_as_true) {
  const std::vector<Bytes> sources = {{std::byte{2}, std::byte{4}}, {std::byte{1}, std::byte{0}}};
  EXPECT_EQ(reduce(DType::Bool, ReduceOp::BitAnd, sources), (Bytes{std::byte{1}, std::byte{0}}));
  EXPECT_EQ(reduce(DType::Bool, ReduceOp::Sum, sources), (Bytes{std::byte{1}, std::byte{1}}));
}

TEST(ReduceElements, destination_that_is_a_source_gets_the_same_result) {
  for (std::size_t where : {0u, 1u, 2u}) {
    std::vector<Bytes> sources;
    for (std::uint64_t s = 0; s < 3; ++s) sources.push_back(random_elements(DType::BFloat16, 3001, s));
    const Bytes expected = reduce(DType::BFloat16, ReduceOp::Sum, sources);
    std::vector<const std::byte*> pointers;
    for (const Bytes& source : sources) pointers.push_back(source.data());
    reduce_elements(DType::BFloat16, ReduceOp::Sum, pointers, sources[where].data(), 3001, 1);
    EXPECT_EQ(sources[where], expected);
  }
}

TEST(ReduceElements, unaligned_sources_are_read) {
  constexpr std::size_t kElements = 1500;
  const Bytes shifted = random_elements(DType::Float32, kElements + 1, 1);
  Bytes aligned(kElements * sizeof(float));
  std::memcpy(aligned.data(), shifted.data() + 1, aligned.size());
  Bytes result(aligned.size());
  const std::vector<const std::byte*> pointers = {shifted.data() + 1, aligned.data()};
  reduce_elements(DType::Float32, ReduceOp::Max, pointers, result.data(), kElements, 1);
  EXPECT_EQ(result, reduce(DType::Float32, ReduceOp::Max, {aligned, aligned}));
}

TEST(Sums, accumulate_divide_and_store_equal_a_reduction) {
  for (DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    const Bytes a = random_elements(dtype, 999, 1);
    const Bytes b = random_elements(dtype, 999, 2);
    std::vector<float> sums(999, 1e9F);
    accumulate_elements(dtype, a.data(), sums, codec::Accumulate::Assign);
    accumulate_elements(dtype, b.data(), sums, codec::Accumulate::Add);
    divide(sums, 3);
    Bytes result(a.size());
    store_sums(dtype, sums, result.data());
    EXPECT_EQ(result, reduce(dtype, ReduceOp::Avg, {a, b}, 3));
  }
}

TEST(CheckReduction, pairs_that_make_no_sense_are_refused) {
  for (DType dtype : all_dtypes()) {
    const bool floating = core::is_floating(dtype);
    for (ReduceOp op : {ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max}) {
      EXPECT_TRUE(check_reduction(dtype, op).is_ok());
    }
    EXPECT_EQ(check_reduction(dtype, ReduceOp::Avg).is_ok(), dtype != DType::Bool);
    for (ReduceOp op : {ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor}) {
      EXPECT_EQ(check_reduction(dtype, op).is_ok(), !floating);
    }
    EXPECT_EQ(check_reduction(dtype, static_cast<ReduceOp>(kOps)).code(), StatusCode::InvalidArgument);
  }
}

}  // namespace
}  // namespace geocomm::collective
