// Loco: its bytes, as docs/spec/codecs.md says them, read and made by code of this file's own.
#include <gtest/gtest.h>

#include <cmath>

#include "codec/payload/payload.h"
#include "codec/quantizers/loco/loco_kernels.h"
#include "level_cases.h"
#include "top_k_cases.h"

namespace geocomm::codec {
namespace {

constexpr std::uint16_t kRawLevel = 0x7F80;

std::size_t share(std::size_t k, std::size_t length) {
  return (k * length + 4095) / 4096;
}

// Of `count` places in `length` elements.
unsigned low_bits_of(std::size_t length, std::size_t count) {
  unsigned bits = 0;
  while (count << (bits + 1) <= length) ++bits;
  return bits;
}

std::size_t place_bytes(std::size_t length, std::size_t count) {
  const unsigned low_bits = low_bits_of(length, count);
  return (count * low_bits + count + ((length - 1) >> low_bits) + 7) / 8;
}

// Appends little-endian bits, the first in the lowest.
class BitWriter {
 public:
  explicit BitWriter(Bytes& to) : to_(to) {}
  void put(std::uint32_t value, unsigned bits) {
    for (unsigned bit = 0; bit < bits; ++bit, ++at_) {
      if (at_ % 8 == 0) to_.push_back(std::byte{0});
      to_.back() |= static_cast<std::byte>((value >> bit & 1u) << at_ % 8);
    }
  }

 private:
  Bytes& to_;
  std::size_t at_ = 0;
};

std::uint32_t bits_at(const std::byte* from, std::size_t at, unsigned bits) {
  std::uint32_t value = 0;
  for (unsigned bit = 0; bit < bits; ++bit) {
    const auto byte = static_cast<std::uint32_t>(from[(at + bit) / 8]);
    value |= (byte >> (at + bit) % 8 & 1u) << bit;
  }
  return value;
}

float sum_of(const std::vector<float>& terms) {
  std::vector<float> sums(128, 0.0f);
  for (std::size_t i = 0; i < terms.size(); ++i) sums[i % 128] += terms[i];
  for (std::size_t half = 64; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

std::uint16_t level_of(const std::vector<float>& part, std::size_t members, float up) {
  return members == 0 ? std::uint16_t{0}
                      : core::float_to_bfloat16_saturated(sum_of(part) / static_cast<float>(members) * up);
}

// The payload of a frame of these values.
Bytes expected_payload(std::span<const float> values, std::uint16_t k) {
  Bytes payload(4);
  std::memcpy(payload.data(), &k, 2);
  Bytes raw;
  const auto chosen = largest_of_chunks(values, k);
  for (std::size_t first = 0; first < values.size(); first += 4096) {
    std::vector<float> kept;
    std::vector<std::uint32_t> places;
    for (std::size_t i = first; i < std::min(first + 4096, values.size()); ++i) {
      if (!chosen[i]) continue;
      kept.push_back(std::isnan(values[i]) ? std::bit_cast<float>(0x7FC00000u) : values[i]);
      places.push_back(static_cast<std::uint32_t>(i - first));
    }
    std::int32_t peak = 0;
    for (const float value : kept) peak = std::max(peak, magnitude_bits(value));
    std::uint16_t low = kRawLevel;
    std::uint16_t high = 0;
    std::vector<std::uint32_t> codes(kept.size(), 0);
    if (peak >= 0x7F800000) {
      const Bytes floats = to_bytes(kept);
      raw.insert(raw.end(), floats.begin(), floats.end());
    } else {
      const int exponent = std::clamp(peak >> 23, 1, 253) - 127;
      const float down = std::ldexp(1.0f, -exponent);
      std::vector<float> t;
      std::vector<float> squares;
      for (const float value : kept) {
        t.push_back(std::abs(value) * down);
        squares.push_back(t.back() * t.back());
      }
      const float sum = sum_of(t);
      const float square_sum = sum_of(squares);
      auto lows = t;
      auto highs = t;
      std::size_t above = 0;
      for (std::size_t i = 0; i < t.size(); ++i) {
        const bool is_high = t[i] * sum >= square_sum;
        (is_high ? lows : highs)[i] = 0.0f;
        above += is_high ? 1 : 0;
        codes[i] = (is_high ? 1u : 0u) | (std::signbit(kept[i]) ? 2u : 0u);
      }
      low = level_of(lows, kept.size() - above, std::ldexp(1.0f, exponent));
      high = level_of(highs, above, std::ldexp(1.0f, exponent));
    }
    BitWriter levels(payload);
    levels.put(low, 16);
    levels.put(high, 16);
    BitWriter indices(payload);
    const std::size_t length = std::min<std::size_t>(4096, values.size() - first);
    const unsigned low_bits = low_bits_of(length, places.size());
    for (const std::uint32_t place : places) indices.put(place, low_bits);
    std::uint32_t zeros = 0;  // so many zeros, and a one for each place
    for (const std::uint32_t place : places) {
      for (; zeros < place >> low_bits; ++zeros) indices.put(0, 1);
      indices.put(1, 1);
    }
    for (; zeros < (length - 1) >> low_bits; ++zeros) indices.put(0, 1);
    BitWriter codes_to(payload);
    for (const std::uint32_t code : codes) codes_to.put(code, 2);
  }
  payload.insert(payload.end(), raw.begin(), raw.end());
  return payload;
}

std::vector<float> expected_values(std::span<const std::byte> payload, std::size_t elements) {
  std::vector<float> values(elements, 0.0f);
  const std::size_t k = bits_at(payload.data(), 0, 16);
  const std::byte* at = payload.data() + 4;
  std::vector<std::pair<std::size_t, std::vector<std::uint32_t>>> raw;
  for (std::size_t first = 0; first < elements; first += 4096) {
    const std::size_t count = share(k, std::min<std::size_t>(4096, elements - first));
    const std::uint32_t low = bits_at(at, 0, 16);
    const std::uint32_t high = bits_at(at, 16, 16);
    const std::size_t length = std::min<std::size_t>(4096, elements - first);
    const unsigned low_bits = low_bits_of(length, count);
    const std::byte* codes = at + 4 + place_bytes(length, count);
    std::vector<std::uint32_t> places;
    std::size_t next = count * low_bits;
    std::uint32_t above = 0;
    for (std::size_t i = 0; i < count; ++i) {
      for (; bits_at(at + 4, next, 1) == 0; ++next) ++above;
      ++next;
      places.push_back(above << low_bits | bits_at(at + 4, i * low_bits, low_bits));
      const std::uint32_t code = bits_at(codes, 2 * i, 2);
      const std::uint32_t level = (code & 1) != 0 ? high : low;
      values[first + places.back()] = std::bit_cast<float>(level << 16 | (code >> 1) << 31);
    }
    if (low == kRawLevel) raw.emplace_back(first, places);
    at = codes + (2 * count + 7) / 8;
  }
  for (const auto& [first, places] : raw) {
    for (const std::uint32_t place : places) {
      std::memcpy(&values[first + place], at, 4);
      at += 4;
    }
  }
  EXPECT_EQ(at, payload.data() + payload.size());
  return values;
}

constexpr std::size_t kLocoLengths[] = {0,    1,    2,    63,   64,   65,   700,           4031,         4032,
                                        4033, 4095, 4096, 4097, 8128, 8192, 3 * 4096 + 64, 5 * 4096 + 17};

TEST(LocoFormat, test_frames_are_those_of_the_specification_at_every_level) {
  for (const auto level : cpu_levels()) {
    const AtLevel forced(level);
    for (const Data data : kAllData) {
      for (const std::size_t length : kLocoLengths) {
        const auto values = make_data(data, length);
        for (const std::uint16_t k : {1, 2, 41, 63, 64, 65, 128, 192, 700, 2048}) {
          CodecSpec spec = spec_of("loco");
          spec.k = k;
          const Bytes frame = compressed(spec, DType::Float32, to_bytes(values));
          const auto payload = std::span(frame).subspan(sizeof(FrameHeader));
          const std::string what = core::str(core::to_string(level), ", data ", static_cast<int>(data), ", ",
                                             length, " elements, k ", k);
          ASSERT_TRUE(std::ranges::equal(payload, expected_payload(values, k))) << what;
          const auto decoded = accumulated(frame, length);
          ASSERT_TRUE(same_bits(decoded, expected_values(payload, length))) << what;
          ASSERT_EQ(decompressed(frame, DType::Float32, length), to_bytes(decoded)) << what;
        }
      }
    }
  }
}

TEST(LocoFormat, test_size_is_known_beforehand_and_under_a_sixth_of_a_bit) {
  const CodecSpec spec = spec_of("loco");
  const std::size_t elements = std::size_t{1} << 18;
  const Bytes frame = compressed(spec, DType::Float32, to_bytes(gaussian(elements)));
  EXPECT_EQ(frame.size(), sizeof(FrameHeader) + 4 + 64 * (4 + 64 + 16));
  EXPECT_LT(8.0 * static_cast<double>(frame.size()), 0.166 * static_cast<double>(elements));
  for (const Data data : {Data::Gaussian, Data::Ties, Data::Zeros, Data::Growing, Data::Sparse}) {
    for (const std::size_t length : kLocoLengths) {
      for (const std::uint32_t k : {1u, 41u, 64u, 2048u}) {
        CodecSpec other = spec;
        other.k = k;
        EXPECT_EQ(compressed(other, DType::Float32, to_bytes(make_data(data, length))).size(),
                  usual_compress_bound(other, DType::Float32, length));
      }
    }
  }
}

// So that a receiver, who cannot know k, can tell what sizes a frame may have.
TEST(LocoFormat, test_no_frame_is_shorter_or_longer_than_those_of_the_outermost_k) {
  for (std::size_t elements = 1; elements <= 2 * kTopKChunk; elements += 1 + elements / 97) {
    for (std::size_t k = 2; k <= kLocoMaxK; ++k) {
      ASSERT_GE(LocoLayout(k, elements).bytes(), LocoLayout(k - 1, elements).bytes())
          << elements << " elements, k " << k;
    }
  }
}

// Squared error of what is kept over its energy, on normal numbers and on such whose tails are heavy: ratios
// of two uniform numbers, whose largest of 4096 lie far apart.
TEST(LocoError, test_kept_values_are_close_where_tails_are_heavy_too) {
  const auto error_of = [](std::span<const float> values) {
    const auto decoded =
        accumulated(compressed(spec_of("loco"), DType::Float32, to_bytes(values)), values.size());
    double error = 0;
    double energy = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (decoded[i] == 0.0f) continue;
      error += std::pow(double{values[i]} - decoded[i], 2);
      energy += double{values[i]} * values[i];
    }
    return error / energy;
  };
  auto values = gaussian(1 << 18);
  EXPECT_LT(error_of(values), 0.005);
  const auto other = gaussian(1 << 18, 1.0f, 2);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= std::abs(other[i]) * other[i];
  EXPECT_LT(error_of(values), 0.06);
}

TEST(LocoLevels, test_every_level_gives_the_bytes_of_scalar) {
  std::size_t turn = 0;
  for (const std::uint32_t k : {1u, 64u, 100u, 128u, 2048u}) {
    CodecSpec spec = spec_of("loco");
    spec.k = k;
    for (const DType dtype : kFloatTypes) {
      for (const std::size_t length : kLocoLengths) {
        const Bytes src = to_bytes(make_data(kAllData[turn % std::size(kAllData)], length), dtype);
        const DType residual_dtype = turn % 2 == 0 ? DType::Float32 : DType::BFloat16;
        Bytes residual = to_bytes(gaussian(length, 0.1f, 6), residual_dtype);
        ErrorFeedback feedback;
        if (turn % 3 != 0 && length > 0) feedback = {residual.data(), residual_dtype, length, 0.95f};
        expect_same_at_every_level(spec, dtype, src, feedback);
        ++turn;
      }
    }
  }
}

TEST(LocoLevels, test_kernels_of_every_level_equal_scalar) {
  for (const auto level : cpu_levels()) {
    const AtLevel forced(level);
    for (std::size_t count = kLocoStep; count <= 2048; count += kLocoStep) {
      const LocoKernels& kernels = loco_kernels_for(count);
      const LocoKernels& scalar = LocoKernels::kScalar;
      std::vector<std::uint32_t> places(count);
      for (std::size_t i = 0; i < count; ++i) {
        places[i] = static_cast<std::uint32_t>(8192 + i * (4096 / count) + i % (4096 / count));
      }
      const LocoPlaces shape{4096, count};
      Bytes packed(shape.bytes() + 7);
      Bytes expected = packed;
      kernels.pack_places(places.data(), shape, 8192, packed.data());
      scalar.pack_places(places.data(), shape, 8192, expected.data());
      ASSERT_TRUE(std::ranges::equal(std::span(packed).first(shape.bytes()),
                                     std::span(expected).first(shape.bytes())));
      std::vector<std::uint32_t> read(count);
      ASSERT_TRUE(kernels.unpack_places(packed.data(), shape, read.data()));
      for (std::uint32_t& place : read) place += 8192;
      ASSERT_EQ(read, places);
      // Two that are equal, anywhere.
      for (std::size_t at = 1; at < count; at += 1 + count / 64) {
        auto equal = places;
        equal[at] = equal[at - 1];
        scalar.pack_places(equal.data(), shape, 8192, packed.data());
        EXPECT_FALSE(kernels.unpack_places(packed.data(), shape, read.data())) << at;
      }
      // Any bit of the unary part, and of what is behind it: then there is one more or one less.
      for (std::size_t bit = count * shape.low_bits(); bit < 8 * shape.bytes(); ++bit) {
        Bytes damaged = expected;
        damaged[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        EXPECT_FALSE(kernels.unpack_places(damaged.data(), shape, read.data())) << bit;
      }

      const auto values = gaussian(count, 3.0f, static_cast<std::uint32_t>(count));
      const LocoRule rule{0.25f, 100.0f, 70.0f};
      Bytes codes(loco_code_bytes(count));
      Bytes expected_codes = codes;
      const LocoParts parts = kernels.quantize(values.data(), count, rule, codes.data());
      const LocoParts expected_parts = scalar.quantize(values.data(), count, rule, expected_codes.data());
      ASSERT_EQ(codes, expected_codes);
      ASSERT_EQ(parts.low, expected_parts.low);
      ASSERT_EQ(parts.high, expected_parts.high);
      ASSERT_EQ(parts.high_count, expected_parts.high_count);
      const LocoLevels levels{0x3F80, 0x40A0};
      std::vector<float> got(count);
      std::vector<float> wanted(count);
      kernels.decode(codes.data(), count, levels, got.data());
      scalar.decode(codes.data(), count, levels, wanted.data());
      ASSERT_TRUE(same_bits(got, wanted));
      kernels.subtract(values.data(), codes.data(), count, levels, got.data());
      scalar.subtract(values.data(), codes.data(), count, levels, wanted.data());
      ASSERT_TRUE(same_bits(got, wanted));
    }
  }
}

}  // namespace
}  // namespace geocomm::codec
