// Deltas against what they were made of: every dtype, the ways in which tensors differ, sizes around those of
// blocks and frames; and what they refuse.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "codec/delta/delta.h"
#include "codec_cases.h"
#include "core/cpu.h"
#include "core/executor.h"

namespace geocomm::codec {
namespace {

constexpr DType kDTypes[] = {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16, DType::Int8,
                             DType::UInt8,   DType::Int16,   DType::Int32,   DType::Int64,    DType::Bool};
constexpr std::size_t kBlock = 65536;

// Bits of any kind, the same on every machine.
std::uint64_t bits_at(std::size_t index, std::uint32_t seed) {
  const auto words = core::philox4x32({static_cast<std::uint32_t>(index), seed, 0, 0}, {5, 6});
  return std::uint64_t{words[0]} << 32 | words[1];
}

Bytes random_bytes(std::size_t bytes, std::uint32_t seed) {
  Bytes made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(bits_at(i, seed) & 0xFF);
  return made;
}

// Weights of a normal distribution, as far as the dtype holds them.
Bytes weights(DType dtype, std::size_t elements) {
  if (core::is_compressible(dtype)) return to_bytes(gaussian(elements, 0.02f), dtype);
  return random_bytes(elements * core::size_of(dtype), 1);
}

// One in `every` elements differs: by a bit in the last place, or by all bits.
Bytes changed(Bytes values, DType dtype, std::size_t every, bool in_last_place) {
  const std::size_t size = core::size_of(dtype);
  for (std::size_t i = 0; i * size < values.size(); ++i) {
    if (bits_at(i, 9) % every != 0) continue;
    std::uint64_t word = 0;
    std::memcpy(&word, values.data() + i * size, size);
    word = in_last_place ? word + (bits_at(i, 10) % 2 != 0 ? 1 : ~std::uint64_t{0}) : bits_at(i, 11);
    std::memcpy(values.data() + i * size, &word, size);
  }
  return values;
}

Bytes delta_of(DType dtype, const Bytes& base, const Bytes& values, core::ThreadPool* pool = nullptr) {
  Bytes delta(delta_bound(dtype, base.size() / core::size_of(dtype)));
  const auto size = make_delta(dtype, base, values, delta, pool);
  EXPECT_TRUE(size.is_ok()) << size.status().to_string();
  delta.resize(size.is_ok() ? *size : 0);
  return delta;
}

void expect_made_again(const Bytes& delta, Bytes base, const Bytes& values,
                       core::ThreadPool* pool = nullptr) {
  const auto status = apply_delta(delta, base, pool);
  ASSERT_TRUE(status.is_ok()) << status.to_string();
  EXPECT_TRUE(base == values);
}

class Delta : public testing::TestWithParam<DType> {};

TEST_P(Delta, test_values_come_out_bit_for_bit_however_many_changed) {
  const DType dtype = GetParam();
  for (const auto elements :
       std::initializer_list<std::size_t>{0, 1, 7, 1000, kBlock - 1, kBlock, 3 * kBlock + 11}) {
    const Bytes base = weights(dtype, elements);
    for (const auto every : std::initializer_list<std::size_t>{1, 2, 5, 30, 100000}) {
      for (const bool in_last_place : {true, false}) {
        const Bytes values = changed(base, dtype, every, in_last_place);
        const Bytes delta = delta_of(dtype, base, values);
        EXPECT_LE(delta.size(), delta_bound(dtype, elements));
        expect_made_again(delta, base, values);
      }
    }
  }
}

TEST_P(Delta, test_every_cpu_level_makes_the_same_bytes) {
  const DType dtype = GetParam();
  const core::CpuLevel before = core::cpu_level();
  for (const auto elements : std::initializer_list<std::size_t>{1, 63, 64, 65, 1000, 2 * kBlock + 77}) {
    const Bytes base = weights(dtype, elements);
    for (const auto every : std::initializer_list<std::size_t>{1, 2, 30, 100000}) {
      const Bytes values = changed(base, dtype, every, every % 4 == 2);
      ASSERT_TRUE(core::force_cpu_level(core::CpuLevel::Scalar).is_ok());
      const Bytes reference = delta_of(dtype, base, values);
      for (const core::CpuLevel level : core::cpu_levels()) {
        ASSERT_TRUE(core::force_cpu_level(level).is_ok());
        EXPECT_TRUE(delta_of(dtype, base, values) == reference)
            << elements << " elements at " << core::to_string(level);
      }
    }
  }
  ASSERT_TRUE(core::force_cpu_level(before).is_ok());
}

TEST_P(Delta, test_blocks_of_all_forms_lie_side_by_side) {
  const DType dtype = GetParam();
  const std::size_t size = core::size_of(dtype);
  const std::size_t block = kBlock * size;
  const Bytes base = weights(dtype, 9 * kBlock + 100);
  Bytes values = base;
  const auto put = [&](std::size_t at, const Bytes& from) {
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at), std::min(block, values.size() - at),
                values.begin() + static_cast<std::ptrdiff_t>(at));
  };
  const Bytes few = changed(base, dtype, 50, true);
  const Bytes many = changed(base, dtype, 1, true);
  const Bytes others = random_bytes(base.size(), 4);
  for (const std::size_t at : {1, 5, 9}) put(at * block, few);
  for (const std::size_t at : {2, 6}) put(at * block, many);
  for (const std::size_t at : {3, 8}) put(at * block, others);
  expect_made_again(delta_of(dtype, base, values), base, values);
}

TEST_P(Delta, test_every_pattern_of_bits_comes_from_every_other) {
  const DType dtype = GetParam();
  const std::size_t size = core::size_of(dtype);
  const std::vector<std::uint64_t> patterns = {0,
                                               1,
                                               0x7F,
                                               0x80,
                                               0xFF,
                                               0x7C00,
                                               0x7F80,
                                               0x7FC0,
                                               0x7FFF,
                                               0x8000,
                                               0x8001,
                                               0xFC00,
                                               0xFF80,
                                               0xFFFF,
                                               0x7F800000,
                                               0x7FC00001,
                                               0x80000000,
                                               0x80000001,
                                               0xFF800000,
                                               0xFFFFFFFF,
                                               0x7FF0000000000000,
                                               ~std::uint64_t{0}};
  Bytes base;
  Bytes values;
  const auto append = [size](Bytes& to, std::uint64_t word) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&word);
    to.insert(to.end(), bytes, bytes + size);
  };
  for (const std::uint64_t from : patterns) {
    for (const std::uint64_t to : patterns) {
      append(base, from);
      append(values, to);
    }
  }
  expect_made_again(delta_of(dtype, base, values), base, values);
}

INSTANTIATE_TEST_SUITE_P(DTypes, Delta, testing::ValuesIn(kDTypes),
                         [](const auto& info) { return std::string(core::to_string(info.param)); });

TEST(DeltaFrames, test_several_frames_and_threads_give_the_same_bytes) {
  const std::size_t elements = 2 * kDeltaFrameBytes / 2 + 12345;
  const Bytes base = random_bytes(2 * elements, 1);
  const Bytes values = changed(base, DType::BFloat16, 300, true);
  core::ThreadPool pool(3, "test");
  const Bytes delta = delta_of(DType::BFloat16, base, values);
  EXPECT_TRUE(delta_of(DType::BFloat16, base, values, &pool) == delta);
  const auto info = inspect_delta(delta);
  ASSERT_TRUE(info.is_ok());
  EXPECT_EQ(info->frames, 3u);
  EXPECT_EQ(info->elements, elements);
  expect_made_again(delta, base, values);
  expect_made_again(delta, base, values, &pool);
}

TEST(DeltaFrames, test_unaligned_memory_is_taken) {
  const Bytes base = weights(DType::Float32, 5000);
  const Bytes values = changed(base, DType::Float32, 9, false);
  for (const auto shift : std::initializer_list<std::size_t>{1, 3}) {
    Bytes room(2 * base.size() + 16);
    const auto at = std::span(room).subspan(shift, base.size());
    std::ranges::copy(base, at.begin());
    Bytes delta(delta_bound(DType::Float32, 5000) + 1);
    const auto size = make_delta(DType::Float32, at, values, std::span(delta).subspan(1));
    ASSERT_TRUE(size.is_ok());
    ASSERT_TRUE(apply_delta(std::span(delta).subspan(1, *size), at).is_ok());
    EXPECT_TRUE(std::ranges::equal(at, values));
  }
}

// Where few weights change by one unit in the last place, which is what steps at a small rate make of
// bfloat16: the entropy of the places, and a bit for the direction, are the least that a delta takes.
TEST(DeltaSize, test_it_is_close_to_the_entropy_of_the_changes) {
  constexpr std::size_t kElements = 8 << 20;
  const Bytes base = weights(DType::BFloat16, 1 << 20);
  Bytes all;
  for (std::size_t i = 0; i < 8; ++i) all.insert(all.end(), base.begin(), base.end());
  for (const double share : {0.003, 0.01, 0.045, 0.2}) {
    const Bytes values =
        changed(all, DType::BFloat16, static_cast<std::size_t>(std::lround(1 / share)), true);
    std::size_t count = 0;
    for (std::size_t i = 0; i < all.size(); i += 2) {
      count += all[i] != values[i] || all[i + 1] != values[i + 1] ? 1 : 0;
    }
    const double p = static_cast<double>(count) / kElements;
    const double bits = -p * std::log2(p) - (1 - p) * std::log2(1 - p) + p;
    const double bound = bits * kElements / 8;
    const auto size = static_cast<double>(delta_of(DType::BFloat16, all, values).size());
    EXPECT_LT(size, 1.02 * bound) << "at " << p;
    EXPECT_GT(size, 0.99 * bound) << "at " << p;
  }
}

TEST(DeltaSize, test_equal_tensors_take_a_header_and_their_forms) {
  const Bytes base = weights(DType::BFloat16, 8 << 20);
  EXPECT_LT(delta_of(DType::BFloat16, base, base).size(), 64u);
}

TEST(DeltaErrors, test_another_base_is_refused_and_left_as_it_is) {
  const std::size_t elements = kDeltaFrameBytes / 2 + 500;  // the fault lies in the second frame
  const Bytes base = random_bytes(2 * elements, 1);
  const Bytes delta = delta_of(DType::BFloat16, base, changed(base, DType::BFloat16, 100, true));
  Bytes other = base;
  other.back() ^= std::byte{1};
  const Bytes before = other;
  const auto status = apply_delta(delta, other);
  EXPECT_EQ(status.code(), StatusCode::InvalidArgument);
  EXPECT_NE(status.message().find("not the base"), std::string::npos);
  EXPECT_TRUE(other == before);
}

TEST(DeltaErrors, test_sizes_that_do_not_fit_are_refused) {
  const Bytes base = weights(DType::Float32, 100);
  Bytes room(delta_bound(DType::Float32, 100));
  EXPECT_EQ(make_delta(DType::Float32, base, std::span(base).first(396), room).status().code(),
            StatusCode::InvalidArgument);
  EXPECT_EQ(make_delta(DType::Float32, std::span(base).first(399), std::span(base).first(399), room)
                .status()
                .code(),
            StatusCode::InvalidArgument);
  EXPECT_EQ(make_delta(DType::Float32, base, base, std::span(room).first(room.size() - 1)).status().code(),
            StatusCode::OutputTooSmall);
  const Bytes delta = delta_of(DType::Float32, base, base);
  Bytes longer(404);
  EXPECT_EQ(apply_delta(delta, longer).code(), StatusCode::InvalidArgument);
}

TEST(DeltaErrors, test_every_flipped_bit_and_every_cut_is_found) {
  const Bytes base = weights(DType::BFloat16, 700);
  const Bytes delta = delta_of(DType::BFloat16, base, changed(base, DType::BFloat16, 20, true));
  for (std::size_t bit = 0; bit < 8 * delta.size(); ++bit) {
    Bytes damaged = delta;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    Bytes values = base;
    const auto code = apply_delta(damaged, values).code();
    EXPECT_TRUE(code == StatusCode::CorruptData || code == StatusCode::VersionMismatch) << bit;
    EXPECT_TRUE(values == base) << bit;
  }
  for (std::size_t size = 0; size < delta.size(); ++size) {
    Bytes values = base;
    EXPECT_EQ(apply_delta(std::span(delta).first(size), values).code(), StatusCode::CorruptData) << size;
    EXPECT_TRUE(values == base) << size;
  }
}

// A delta whose payload was changed on purpose, with right checksums.
Bytes forged(Bytes delta, std::size_t at, std::byte value) {
  DeltaHeader header;
  std::memcpy(&header, delta.data(), sizeof(header));
  delta[at] = value;
  if (at < sizeof(header)) std::memcpy(&header, delta.data(), sizeof(header));
  header.payload_crc = core::crc32c(std::span(delta).subspan(sizeof(header)));
  header.header_crc =
      core::crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(DeltaHeader, header_crc)));
  std::memcpy(delta.data(), &header, sizeof(header));
  return delta;
}

TEST(DeltaErrors, test_forged_frames_are_refused_or_give_some_values_and_reach_no_other_memory) {
  for (const DType dtype : {DType::BFloat16, DType::Float32, DType::Int8}) {
    const Bytes base = weights(dtype, 3000);
    for (const auto every : std::initializer_list<std::size_t>{1, 40}) {
      for (const bool in_last_place : {true, false}) {
        const Bytes delta = delta_of(dtype, base, changed(base, dtype, every, in_last_place));
        for (std::size_t at = 8; at < std::min<std::size_t>(delta.size(), 400); ++at) {
          if (at >= 20 && at < 24) continue;  // the base's checksum
          for (const int value : {0, 1, 2, 3, 127, 255}) {
            Bytes values = base;
            const auto status = apply_delta(forged(delta, at, static_cast<std::byte>(value)), values);
            EXPECT_TRUE(status.is_ok() || status.code() == StatusCode::CorruptData ||
                        status.code() == StatusCode::InvalidArgument)
                << status.to_string();
          }
        }
      }
    }
  }
}

std::filesystem::path golden_delta(const std::string& name) {
  return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path() / "golden" / "deltas" /
         name;
}

// GEOCOMM_WRITE_GOLDEN=1 writes them anew: only with a new format version.
TEST(GoldenDeltas, test_committed_deltas_are_made_and_applied_as_they_were) {
  for (const DType dtype : kDTypes) {
    const std::size_t elements = kBlock + 3000;
    const Bytes base = weights(dtype, elements);
    Bytes values = changed(base, dtype, 40, true);
    const Bytes others = random_bytes(base.size(), 4);
    std::copy(others.end() - static_cast<std::ptrdiff_t>(3000 * core::size_of(dtype)), others.end(),
              values.end() - static_cast<std::ptrdiff_t>(3000 * core::size_of(dtype)));
    const Bytes delta = delta_of(dtype, base, values);
    const auto path = golden_delta("v1_" + std::string(core::to_string(dtype)) + ".delta");
    if (std::getenv("GEOCOMM_WRITE_GOLDEN") != nullptr) {
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(delta.data()), static_cast<std::streamsize>(delta.size()));
    }
    std::ifstream file(path, std::ios::binary);
    ASSERT_TRUE(file.good()) << path;
    const std::string committed{std::istreambuf_iterator<char>(file), {}};
    EXPECT_TRUE(std::ranges::equal(delta, std::as_bytes(std::span(committed)))) << path;
    Bytes again = base;
    ASSERT_TRUE(apply_delta(std::as_bytes(std::span(committed)), again).is_ok()) << path;
    EXPECT_TRUE(again == values) << path;
  }
}

}  // namespace
}  // namespace geocomm::codec
