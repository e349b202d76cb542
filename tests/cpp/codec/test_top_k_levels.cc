#include <gtest/gtest.h>

#include "codec/quantizers/select/select_kernels.h"
#include "top_k_cases.h"

namespace geocomm::codec {
namespace {

struct Run {
  Bytes frame;
  Bytes residual;
  Bytes decoded;
  std::vector<float> sum;
  bool operator==(const Run& other) const {
    return frame == other.frame && residual == other.residual && decoded == other.decoded &&
           same_bits(sum, other.sum);
  }
};

struct TopKCase {
  CodecSpec spec;
  DType dtype;
  const DType* residual_dtype;  // nullptr: none
  std::size_t shift;            // of every pointer, in bytes
};

Run run_at(core::CpuLevel level, const TopKCase& c, const Bytes& src, std::size_t length) {
  const AtLevel forced(level);
  Bytes shifted(src.size() + c.shift);
  std::ranges::copy(src, shifted.begin() + static_cast<std::ptrdiff_t>(c.shift));
  Run run;
  CompressOptions options;
  if (c.residual_dtype != nullptr) {
    const Bytes old = to_bytes(gaussian(length, 0.1f, 6), *c.residual_dtype);
    run.residual.resize(old.size() + c.shift);
    std::ranges::copy(old, run.residual.begin() + static_cast<std::ptrdiff_t>(c.shift));
    options.feedback = {run.residual.data() + c.shift, *c.residual_dtype, length, 0.9f};
  }
  run.frame = compressed(c.spec, c.dtype, std::span(shifted).subspan(c.shift), options);
  run.decoded = decompressed(run.frame, c.dtype, length);
  run.sum = gaussian(length, 1.0f, 8);
  EXPECT_TRUE(decompress_accumulate(run.frame, run.sum, Accumulate::Add).is_ok());
  return run;
}

void expect_levels_equal(const TopKCase& c, Data data, std::size_t length) {
  const Bytes src = to_bytes(make_data(data, length, 1 + static_cast<std::uint32_t>(length)), c.dtype);
  const Run expected = run_at(core::CpuLevel::Scalar, c, src, length);
  for (const auto level : cpu_levels()) {
    ASSERT_EQ(run_at(level, c, src, length), expected)
        << core::to_string(level) << ' ' << c.spec.to_string() << ' ' << core::to_string(c.dtype) << ' '
        << length << " data " << static_cast<int>(data);
  }
}

constexpr DType kFloat32 = DType::Float32;
constexpr DType kBFloat16 = DType::BFloat16;
constexpr const DType* kResiduals[] = {nullptr, &kFloat32, &kBFloat16};

TEST(TopKLevels, test_every_level_gives_the_bytes_of_scalar_at_every_short_length) {
  for (std::size_t length = 0; length <= 1000; ++length) {
    const std::string_view texts[] = {"topk:k=300,values=bf16", "topk:k=64,values=fp32"};
    const TopKCase c{spec_of(texts[length % 2]), kFloatTypes[length / 2 % 3], kResiduals[length / 6 % 3],
                     length % 5};
    expect_levels_equal(c, length % 7 == 0 ? Data::Special : Data::Gaussian, length);
  }
}

TEST(TopKLevels, test_every_level_gives_the_bytes_of_scalar_around_edges) {
  std::size_t turn = 0;  // each with one kind of data; five turns to a row, so that no two rows are alike
  for (const std::string_view text : {"topk", "topk:values=bit2", "topk:k=1,values=fp32",
                                      "topk:k=2048,values=fp32", "topk:k=400,values=bf16"}) {
    for (const DType dtype : kFloatTypes) {
      for (const DType* residual : kResiduals) {
        for (const std::size_t length : {4095, 4096, 4097, 8192 + 13}) {
          const Data data = kAllData[turn++ % std::size(kAllData)];
          expect_levels_equal({spec_of(text), dtype, residual, length % 4 + 1}, data, length);
        }
        ++turn;
      }
    }
  }
}

TEST(TopKLevels, test_every_level_gives_the_bytes_of_scalar_on_whole_frames) {
  for (const std::string_view text : {"topk", "topk:k=700,values=bit2"}) {
    for (const std::size_t length : {(1 << 18) - 1, 1 << 18, (1 << 18) + 1}) {
      for (const Data data : {Data::Gaussian, Data::Shrinking, Data::Special}) {
        expect_levels_equal({spec_of(text), DType::Float32, &kFloat32, 0}, data, length);
      }
    }
  }
}

// Every pattern of a 16-bit dtype, and all that matter of a float, through the kernels themselves.
TEST(TopKLevels, test_collect_of_every_16_bit_pattern_equals_scalar) {
  for (const auto level : cpu_levels()) {
    const AtLevel forced(level);
    for (const DType dtype : {DType::Float16, DType::BFloat16}) {
      for (const Residual residual : {Residual::None, Residual::Float32, Residual::BFloat16}) {
        Bytes src(2 * kTopKChunk);
        for (std::uint32_t first = 0; first < 65536; first += kTopKChunk) {
          for (std::uint32_t i = 0; i < kTopKChunk; ++i) {
            const auto bits = static_cast<std::uint16_t>(first + i);
            std::memcpy(src.data() + 2 * i, &bits, 2);
          }
          const auto collect = [&](const SelectKernels& kernels, Bytes& left) {
            left.assign(4 * kTopKChunk, std::byte{0x3C});
            std::vector<float> chunk(kTopKChunk);
            std::vector<float> values(kTopKChunk + 16);
            std::vector<std::uint32_t> places(kTopKChunk + 16);
            const CollectInput input{src.data(), left.data(), 0.5f, kTopKChunk, 0x3F800000, first};
            const std::size_t found =
                kernels.collect[compressible_index(dtype)][static_cast<std::size_t>(residual)](
                    input, chunk.data(), values.data(), places.data());
            places.resize(found);
            for (float& value : chunk) value = std::isnan(value) ? kNan : value;
            return std::pair(places, chunk);
          };
          Bytes left;
          Bytes expected_left;
          const auto got = collect(core::at_cpu_level<SelectKernels>(), left);
          const auto expected = collect(SelectKernels::kScalar, expected_left);
          ASSERT_EQ(got.first, expected.first);
          ASSERT_TRUE(same_bits(got.second, expected.second));
          ASSERT_EQ(left, expected_left) << core::to_string(level) << ' ' << core::to_string(dtype);
        }
      }
    }
  }
}

TEST(TopKLevels, test_count_and_gaps_equal_scalar) {
  const auto values = make_data(Data::Special, 300);
  for (const auto level : cpu_levels()) {
    const AtLevel forced(level);
    for (std::size_t count = 0; count <= 300; ++count) {
      for (const std::int32_t bound : {-1, 0, 0x3F000000, 0x7F7FFFFF, 0x7FC00000}) {
        EXPECT_EQ(core::at_cpu_level<SelectKernels>().count_above(values.data() + 300 - count, count, bound),
                  SelectKernels::kScalar.count_above(values.data() + 300 - count, count, bound));
      }
      std::vector<std::uint32_t> places(count);
      std::uint32_t at = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t random = core::philox4x32({static_cast<std::uint32_t>(i), 0, 0, 0}, {1, 1})[0];
        at += 1 + (random % 16 == 0 ? 240 + random / 16 % 600 : random / 16 % 64);
        places[i] = at;
      }
      Bytes gaps(2000 + 64);
      Bytes expected(2000 + 64);
      for (const std::uint32_t previous : {kNoPlace, std::uint32_t{0}}) {
        const std::size_t bytes =
            core::at_cpu_level<SelectKernels>().write_gaps(places.data(), count, previous, gaps.data());
        ASSERT_EQ(bytes, SelectKernels::kScalar.write_gaps(places.data(), count, previous, expected.data()));
        ASSERT_TRUE(std::ranges::equal(std::span(gaps).first(bytes), std::span(expected).first(bytes)));
      }
    }
  }
}

}  // namespace
}  // namespace geocomm::codec
