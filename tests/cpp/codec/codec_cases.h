// What the codec tests share: data that is the same on every machine, and frames as owned bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codec/frames/codec.h"
#include "codec/frames/frame.h"
#include "codec/spec/codec_spec.h"
#include "core/crc32c.h"
#include "core/half.h"
#include "core/philox.h"

namespace geocomm::codec {

using core::DType;
using core::StatusCode;
using Bytes = std::vector<std::byte>;

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr DType kFloatTypes[] = {DType::Float32, DType::Float16, DType::BFloat16};
inline constexpr std::string_view kAllSpecs[] = {"none",
                                                 "fp16",
                                                 "bf16",
                                                 "bf16+huffman",
                                                 "int8",
                                                 "int8:block=64",
                                                 "int8:round=stochastic",
                                                 "int8+huffman",
                                                 "int4",
                                                 "int4:block=64,round=stochastic",
                                                 "int4:block=4096",
                                                 "bit2",
                                                 "bit2:block=64+huffman",
                                                 "bit1",
                                                 "bit1:block=64"};

inline ErrorFeedback feedback(std::vector<float>& residual) {
  return {reinterpret_cast<std::byte*>(residual.data()), DType::Float32, residual.size()};
}

inline CodecSpec spec_of(std::string_view text) {
  auto spec = CodecSpec::parse(text);
  EXPECT_TRUE(spec.is_ok()) << spec.status().to_string();
  return *spec;
}

// Close to a normal distribution of that deviation; exact arithmetic, so the same everywhere.
inline std::vector<float> gaussian(std::size_t count, float deviation = 1.0f, std::uint32_t seed = 1) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t sum = 0;  // twelve uniform numbers of 16 bits: deviation 65536
    for (std::uint32_t part = 0; part < 3; ++part) {
      for (const std::uint32_t word :
           core::philox4x32({static_cast<std::uint32_t>(i), part, 0, 7}, {seed, 0})) {
        sum += static_cast<std::int32_t>(word >> 16);
      }
    }
    values[i] = static_cast<float>(sum - 6 * 65536) / 65536.0f * deviation;
  }
  return values;
}

inline Bytes to_bytes(std::span<const float> values, DType dtype = DType::Float32) {
  Bytes bytes(values.size() * core::size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::Float32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    } else {
      const std::uint16_t bits =
          dtype == DType::Float16 ? core::float_to_half(values[i]) : core::float_to_bfloat16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
  }
  return bytes;
}

inline std::vector<float> to_floats(std::span<const std::byte> bytes, DType dtype = DType::Float32) {
  std::vector<float> values(bytes.size() / core::size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::Float32) {
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
    } else {
      std::uint16_t bits;
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      values[i] = dtype == DType::Float16 ? core::half_to_float(bits) : core::bfloat16_to_float(bits);
    }
  }
  return values;
}

// Compresses into room of just compress_bound(); the vector ends where the frame does.
inline Bytes compressed(const CodecSpec& spec, DType dtype, std::span<const std::byte> src,
                        const CompressOptions& options = {}) {
  Bytes dst(compress_bound(spec, dtype, src.size() / core::size_of(dtype)));
  const auto size = compress(spec, dtype, src, dst, options);
  EXPECT_TRUE(size.is_ok()) << size.status().to_string();
  Bytes frame(dst.begin(), dst.begin() + static_cast<std::ptrdiff_t>(size.is_ok() ? *size : 0));
  return frame;
}

inline Bytes decompressed(std::span<const std::byte> frame, DType dtype, std::size_t elements) {
  Bytes out(elements * core::size_of(dtype));
  const auto status = decompress(frame, out);
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  return out;
}

inline std::vector<float> accumulated(std::span<const std::byte> frame, std::size_t elements) {
  std::vector<float> out(elements, kNan);
  const auto status = decompress_accumulate(frame, out, Accumulate::Assign);
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  return out;
}

// Makes the checksums of a tampered frame right again, as a hostile peer would.
inline void reseal(Bytes& frame) {
  FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof(header));
  header.payload_crc = core::crc32c(std::span(frame).subspan(sizeof(header)));
  header.header_crc = core::crc32c(std::as_bytes(std::span(&header, 1)).first(sizeof(header) - 4));
  std::memcpy(frame.data(), &header, sizeof(header));
}

// A codec string as the name of a parameterized test.
inline std::string case_name(const testing::TestParamInfo<std::string_view>& info) {
  std::string name(info.param);
  std::ranges::replace_if(name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace geocomm::codec
