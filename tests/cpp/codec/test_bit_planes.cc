// BitPlanes: the planes as they are defined, the values of DeadZone, and frames that no encoder wrote.
#include <gtest/gtest.h>

#include <array>

#include "codec_cases.h"
#include "forged_frames.h"
#include "level_cases.h"

namespace geocomm::codec {
namespace {

// The planes of a frame without a stage: bitmap, signs, magnitudes above 1, 2 and 3, magnitudes.
struct Planes {
  std::array<std::span<const std::byte>, 6> planes;
  std::vector<int> codes;  // of all elements
};

bool has_bit(std::span<const std::byte> bits, std::size_t i) {
  return (static_cast<unsigned>(bits[i / 8]) >> (i % 8) & 1u) != 0;
}

Planes planes_of(const FrameView& view) {
  Planes out;
  const std::size_t blocks = (view.elements + view.spec.block - 1) / view.spec.block;
  auto rest = view.payload.subspan(2 * blocks);
  const auto take = [&](std::size_t bytes) {
    const auto plane = rest.first(bytes);
    rest = rest.subspan(bytes);
    return plane;
  };
  const auto bits_in = [](std::span<const std::byte> plane) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < 8 * plane.size(); ++i) count += has_bit(plane, i);
    return count;
  };
  out.planes[0] = take((view.elements + 7) / 8);
  std::size_t count = bits_in(out.planes[0]);
  out.planes[1] = take((count + 7) / 8);
  for (const int step : {2, 3, 4}) {
    out.planes[step] = take((count + 7) / 8);
    count = bits_in(out.planes[step]);
  }
  out.planes[5] = take(count);
  std::array<std::size_t, 5> next{};
  for (std::size_t i = 0; i < view.elements; ++i) {
    out.codes.push_back(0);
    if (!has_bit(out.planes[0], i)) continue;
    const bool is_negative = has_bit(out.planes[1], next[0]++);
    int magnitude = 1;
    while (magnitude < 4 && has_bit(out.planes[1 + magnitude], next[magnitude]++)) ++magnitude;
    if (magnitude == 4) magnitude = static_cast<int>(out.planes[5][next[4]++]);
    out.codes.back() = is_negative ? -magnitude : magnitude;
  }
  return out;
}

// Codes of every magnitude, few of them large, and blocks that are raw or zeros.
std::vector<float> spread_values(std::size_t count) {
  auto values = gaussian(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 5 == 0) values[i] *= 3.0f;
    if (i % 97 == 0) values[i] *= 5.0f;
    if (i / 128 % 5 == 3) values[i] = 0.0f;
    if (i / 128 % 7 == 4 && i % 128 == 9) values[i] = kNan;
  }
  return values;
}

TEST(BitPlanes, test_planes_are_the_codes_of_deadzone) {
  for (const char* settings : {":block=128+none", ":block=128,step=0.05+none", ":block=128,step=3+none"}) {
    for (const std::size_t length : {1u, 63u, 64u, 65u, 1000u, 4097u, 30000u}) {
      const Bytes src = to_bytes(spread_values(length));
      const Bytes one = compressed(spec_of(std::string("bitplanes") + settings), DType::Float32, src);
      const Bytes other = compressed(spec_of(std::string("deadzone") + settings), DType::Float32, src);
      const auto view = parse_frame(one);
      const auto dead_zone = parse_frame(other);
      const auto bitmap = dead_zone->payload.subspan(2 * ((length + 127) / 128));
      auto codes = bitmap.subspan((length + 7) / 8);
      std::vector<int> expected;
      for (std::size_t i = 0; i < length; ++i) {
        const bool is_set = has_bit(bitmap, i);
        expected.push_back(is_set ? static_cast<std::int8_t>(codes[0]) : 0);
        if (is_set) codes = codes.subspan(1);
      }
      ASSERT_EQ(planes_of(*view).codes, expected) << settings << ' ' << length;
    }
  }
}

TEST(BitPlanes, test_values_and_residuals_are_those_of_deadzone) {
  for (const char* settings : {"", ":block=256,step=0.05", ":step=2+none"}) {
    for (const DType dtype : kFloatTypes) {
      for (const DType residual_dtype : {DType::Float32, DType::BFloat16}) {
        for (const std::size_t length : {0u, 1u, 65u, 4096u, 20001u}) {
          const Bytes src = to_bytes(spread_values(length), dtype);
          std::array<Bytes, 2> residuals;
          std::array<std::vector<float>, 2> decoded;
          for (std::size_t i = 0; i < 2; ++i) {
            residuals[i] = to_bytes(gaussian(length, 0.1f, 5), residual_dtype);
            const ErrorFeedback feedback{residuals[i].data(), residual_dtype, length, 0.5f};
            const CodecSpec spec = spec_of(std::string(i == 0 ? "deadzone" : "bitplanes") + settings);
            decoded[i] = accumulated(compressed(spec, dtype, src, {.feedback = feedback}), length);
          }
          ASSERT_TRUE(same_bits(decoded[0], decoded[1])) << settings << ' ' << length;
          ASSERT_EQ(residuals[0], residuals[1]) << settings << ' ' << length;
        }
      }
    }
  }
}

TEST(BitPlanes, test_all_large_codes_take_every_plane) {
  std::vector<float> values(5000, 4.0f);
  for (std::size_t i = 0; i < values.size(); i += 3) values[i] = -4.0f;
  for (const char* text : {"bitplanes:step=0.05", "bitplanes:step=0.05+none"}) {  // codes of 20
    expect_same_at_every_level(spec_of(text), DType::Float32, to_bytes(values));
    const Bytes frame = compressed(spec_of(text), DType::Float32, to_bytes(values));
    for (const float value : accumulated(frame, values.size())) ASSERT_NEAR(std::abs(value), 4.0f, 0.13f);
  }
}

constexpr std::size_t kForgedElements = 200;

Bytes bit_planes_frame() {
  auto values = gaussian(kForgedElements);
  values[64 + 3] = kInf;
  for (std::size_t i = 128; i < kForgedElements; i += 9) values[i] *= 6.0f;
  return compressed(spec_of("bitplanes:block=64,step=0.5+none"), DType::Float32, to_bytes(values));
}

TEST(ForgedBitPlanes, test_magnitude_that_the_bits_would_tell_or_none_has_is_corrupt) {
  const Bytes good = bit_planes_frame();
  const auto view = parse_frame(good);
  const auto magnitudes = planes_of(*view).planes[5];
  ASSERT_GT(magnitudes.size(), 0u);
  const auto at = static_cast<std::size_t>(magnitudes.data() - good.data());
  for (const int magnitude : {0, 3, 128, 255}) {
    Bytes frame = good;
    frame[at] = static_cast<std::byte>(magnitude);
    expect_forgery_refused(frame, kForgedElements);
  }
}

TEST(ForgedBitPlanes, test_bits_beyond_the_codes_are_corrupt) {
  const Bytes good = bit_planes_frame();
  const auto view = parse_frame(good);
  const Planes planes = planes_of(*view);
  std::size_t count = 0;
  for (const int code : planes.codes) count += code != 0;
  for (std::size_t plane = 1; plane <= 4; ++plane) {
    ASSERT_GT(planes.planes[plane].size(), 0u);
    if (count % 8 != 0) {
      Bytes frame = good;
      const auto& last = planes.planes[plane].back();
      frame[static_cast<std::size_t>(&last - good.data())] |= std::byte{0x80};
      expect_forgery_refused(frame, kForgedElements);
    }
    if (plane == 1) continue;
    std::size_t next = 0;
    for (std::size_t i = 0; i < count; ++i) next += has_bit(planes.planes[plane], i);
    count = next;
  }
}

TEST(ForgedBitPlanes, test_truncated_or_longer_payload_is_corrupt) {
  for (const char* text : {"bitplanes:block=64+none", "bitplanes:block=64"}) {
    auto values = gaussian(kForgedElements);
    values[70] = kNan;
    const Bytes good = compressed(spec_of(text), DType::Float32, to_bytes(values));
    for (std::size_t size = sizeof(FrameHeader); size < good.size(); ++size) {
      Bytes frame(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
      set_payload_bytes(frame);
      expect_forgery_refused(frame, kForgedElements);
    }
    Bytes longer = good;
    longer.push_back(std::byte{0});
    set_payload_bytes(longer);
    expect_forgery_refused(longer, kForgedElements);
  }
}

}  // namespace
}  // namespace geocomm::codec
