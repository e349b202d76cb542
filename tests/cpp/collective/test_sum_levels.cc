#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "collective/sums/reduction.h"
#include "core/cpu.h"

namespace geocomm::collective {
namespace {

using core::CpuLevel;
using core::DType;
using Bytes = std::vector<std::byte>;

constexpr DType kDTypes[] = {DType::Float32, DType::Float16, DType::BFloat16};
constexpr std::size_t kOffset = 1;  // from any alignment

// Every kind of pattern; one element in four is Inf or NaN.
Bytes any_bits(DType dtype, std::size_t elements, std::uint32_t seed) {
  const std::size_t size = core::size_of(dtype);
  Bytes bytes(kOffset + elements * size);
  for (std::size_t i = 0; i < elements; ++i) {
    seed = seed * 1664525u + 1013904223u;
    std::uint32_t bits = seed ^ (seed >> 15);
    const std::uint32_t inf = dtype == DType::Float16    ? 0x7C00u
                              : dtype == DType::BFloat16 ? 0x7F80u
                                                         : 0x7F800000u;
    if ((seed >> 20) % 4 == 0) bits |= inf;
    std::memcpy(bytes.data() + kOffset + i * size, &bits, size);
  }
  return bytes;
}

std::vector<float> any_floats(std::size_t count, std::uint32_t seed) {
  const Bytes bytes = any_bits(DType::Float32, count, seed);
  std::vector<float> floats(count);
  if (count > 0) std::memcpy(floats.data(), bytes.data() + kOffset, count * sizeof(float));
  return floats;
}

Bytes bytes_of(const std::vector<float>& floats) {
  Bytes bytes(floats.size() * sizeof(float));
  if (!floats.empty()) std::memcpy(bytes.data(), floats.data(), bytes.size());
  return bytes;
}

// `make` gives the same bytes at each level that this machine has.
template <typename Make>
void expect_same_at_every_level(Make make) {
  const CpuLevel before = core::cpu_level();
  ASSERT_TRUE(core::force_cpu_level(CpuLevel::Scalar).is_ok());
  const Bytes expected = make();
  for (const CpuLevel level : core::cpu_levels()) {
    ASSERT_TRUE(core::force_cpu_level(level).is_ok());
    EXPECT_EQ(make(), expected) << core::to_string(level);
  }
  ASSERT_TRUE(core::force_cpu_level(before).is_ok());
}

std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t length = 0; length <= 140; ++length) all.push_back(length);
  all.insert(all.end(), {1023, 1024, 2500});
  return all;
}

TEST(SumLevels, reduced_bytes_are_the_same) {
  for (const DType dtype : kDTypes) {
    for (const std::size_t elements : lengths()) {
      for (const std::size_t source_count : {1u, 2u, 3u}) {
        std::vector<Bytes> sources;
        std::vector<const std::byte*> pointers;
        for (std::uint32_t s = 0; s < source_count; ++s) {
          sources.push_back(any_bits(dtype, elements, 100 * s + static_cast<std::uint32_t>(elements)));
        }
        for (const Bytes& source : sources) pointers.push_back(source.data() + kOffset);
        for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Avg}) {
          SCOPED_TRACE(::testing::Message()
                       << core::to_string(dtype) << " " << elements << " of " << source_count);
          expect_same_at_every_level([&] {
            Bytes result(sources[0].size());
            reduce_elements(dtype, op, pointers, result.data() + kOffset, elements, 3);
            return result;
          });
        }
      }
    }
  }
}

TEST(SumLevels, accumulated_sums_are_the_same) {
  for (const DType dtype : kDTypes) {
    for (const std::size_t elements : lengths()) {
      const Bytes added = any_bits(dtype, elements, 5);
      for (const auto mode : {codec::Accumulate::Assign, codec::Accumulate::Add}) {
        SCOPED_TRACE(::testing::Message() << core::to_string(dtype) << " " << elements);
        expect_same_at_every_level([&] {
          std::vector<float> sums = any_floats(elements, 9);
          accumulate_elements(dtype, added.data() + kOffset, sums, mode);
          return bytes_of(sums);
        });
      }
    }
  }
}

TEST(SumLevels, stored_sums_are_the_same) {
  for (const DType dtype : kDTypes) {
    for (const std::size_t elements : lengths()) {
      const std::vector<float> sums = any_floats(elements, 3);
      SCOPED_TRACE(::testing::Message() << core::to_string(dtype) << " " << elements);
      expect_same_at_every_level([&] {
        Bytes stored(kOffset + elements * core::size_of(dtype));
        store_sums(dtype, sums, stored.data() + kOffset);
        return stored;
      });
    }
  }
}

TEST(SumLevels, every_16_bit_pattern_is_widened_and_stored_alike) {
  Bytes patterns(65536 * 2);
  for (std::uint32_t i = 0; i < 65536; ++i) std::memcpy(patterns.data() + 2 * i, &i, 2);
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    expect_same_at_every_level([&] {
      std::vector<float> sums(65536);
      accumulate_elements(dtype, patterns.data(), sums, codec::Accumulate::Assign);
      return bytes_of(sums);
    });
    // The neighbours of every value and of every midpoint.
    for (const std::uint32_t distance : {0u, 1u, 0x0FFFu, 0x1000u, 0x1001u, 0x7FFFu, 0x8000u, 0x8001u}) {
      expect_same_at_every_level([&] {
        std::vector<float> sums(65536);
        accumulate_elements(dtype, patterns.data(), sums, codec::Accumulate::Assign);
        for (float& sum : sums) sum = std::bit_cast<float>(std::bit_cast<std::uint32_t>(sum) + distance);
        Bytes stored(patterns.size());
        store_sums(dtype, sums, stored.data());
        return stored;
      });
    }
  }
}

TEST(SumLevels, the_first_nan_of_several_is_kept) {
  const auto sum_of = [](std::uint16_t a, std::uint16_t b, std::uint16_t c) {
    const std::byte* const pointers[] = {reinterpret_cast<const std::byte*>(&a),
                                         reinterpret_cast<const std::byte*>(&b),
                                         reinterpret_cast<const std::byte*>(&c)};
    std::uint16_t result = 0;
    reduce_elements(DType::BFloat16, ReduceOp::Sum, pointers, reinterpret_cast<std::byte*>(&result), 1, 1);
    return result;
  };
  EXPECT_EQ(sum_of(0x3F80, 0x7F81, 0xFFC2), 0x7FC1);
  EXPECT_EQ(sum_of(0xFF83, 0x7F81, 0x3F80), 0xFFC3);
}

}  // namespace
}  // namespace geocomm::collective
