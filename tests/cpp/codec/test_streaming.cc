// Decoding past the caches gives the bytes of decoding through them, wherever the output lies and ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "codec/frames/codec.h"
#include "codec/frames/streaming.h"
#include "codec/payload/payload.h"
#include "codec_cases.h"
#include "plane_cases.h"

namespace geocomm::codec {
namespace {

constexpr std::size_t kElementsInFrame = kPayloadFrameBytes / sizeof(float);
constexpr std::byte kGuard{0xA5};

// As decompress_payload(), frame by frame.
void decode_frames(std::span<const std::byte> payload, std::span<std::byte> out, Stores stores) {
  while (!payload.empty()) {
    const auto frame = parse_frame(payload);
    ASSERT_TRUE(frame.is_ok()) << frame.status().to_string();
    const std::size_t bytes = frame->elements * core::size_of(frame->dtype);
    ASSERT_TRUE(decompress(payload, out.first(bytes), stores).is_ok());
    out = out.subspan(bytes);
    payload = payload.subspan(frame_bytes(*frame));
  }
  EXPECT_TRUE(out.empty());
}

// The elements, decoded so far behind a multiple of kStreamAlignment; nothing else was written.
Bytes decoded_at(std::size_t offset, std::span<const std::byte> payload, std::size_t bytes, Stores stores) {
  Bytes room(2 * kStreamAlignment + offset + bytes, kGuard);
  const auto address = reinterpret_cast<std::uintptr_t>(room.data());
  const std::size_t begin = (kStreamAlignment - address % kStreamAlignment) % kStreamAlignment + offset;
  const auto out = std::span(room).subspan(begin, bytes);
  decode_frames(payload, out, stores);
  Bytes decoded(out.begin(), out.end());
  std::ranges::fill(out, kGuard);
  EXPECT_EQ(std::ranges::count(room, kGuard), static_cast<std::ptrdiff_t>(room.size()));
  return decoded;
}

Bytes whole_payload(const CodecSpec& spec, DType dtype, std::span<const std::byte> src) {
  Bytes dst(payload_bound(spec, dtype, src.size() / core::size_of(dtype)));
  const auto size = compress_payload(spec, dtype, src, dst);
  EXPECT_TRUE(size.is_ok());
  dst.resize(size.is_ok() ? *size : 0);
  return dst;
}

class Streaming : public testing::TestWithParam<std::string_view> {
 protected:
  // Streamed to addresses of every kind, at every level, it is what the caches give.
  void expect_same(DType dtype, std::span<const std::byte> src, std::initializer_list<std::size_t> offsets) {
    const Bytes payload = whole_payload(spec_of(GetParam()), dtype, src);
    at_every_cpu_level([&] {
      const Bytes expected = decoded_at(0, payload, src.size(), Stores::Cached);
      for (const std::size_t offset : offsets) {
        ASSERT_EQ(decoded_at(offset, payload, src.size(), Stores::Streaming), expected)
            << src.size() << " bytes at " << offset;
      }
    });
  }
};

TEST_P(Streaming, test_decompress_of_any_length_and_alignment_streams_the_same_bytes) {
  const auto values = gaussian(2200, 0.1f);
  for (const std::size_t length : {0, 1, 3, 4, 15, 16, 17, 63, 64, 65, 127, 255, 256, 257, 320, 1000, 2200}) {
    const auto part = std::span(values).first(length);
    expect_same(DType::Float32, to_bytes(part), {0, 1, 4, 8, 16, 20, 32, 48, 63});
    expect_same(DType::BFloat16, to_bytes(part, DType::BFloat16), {0, 2, 32});
  }
}

TEST_P(Streaming, test_decompress_of_raw_blocks_and_many_frames_streams_the_same_bytes) {
  auto values = gaussian(3 * kElementsInFrame + 77, 0.1f);
  values[300] = kNan;
  values[2 * kElementsInFrame + 5000] = -std::numeric_limits<float>::infinity();
  values.back() = kNan;
  expect_same(DType::Float32, to_bytes(values), {0, 4, 32});
}

TEST(StreamingPayload, test_decompress_payload_that_is_large_enough_streams_the_same_bytes) {
  auto values = gaussian(kElementsInFrame, 0.1f);
  const std::size_t frames = kStreamingThreshold / kPayloadFrameBytes;
  const Bytes frame = to_bytes(values);
  Bytes src;
  for (std::size_t i = 0; i < frames; ++i) src.insert(src.end(), frame.begin(), frame.end());
  const Bytes payload = whole_payload(spec_of("int8"), DType::Float32, src);
  Bytes expected(src.size());
  decode_frames(payload, expected, Stores::Cached);
  core::ThreadPool pool(2, "codec");
  Bytes out(src.size() + kStreamAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(out.data());
  const auto aligned =
      std::span(out).subspan((kStreamAlignment - address % kStreamAlignment) % kStreamAlignment, src.size());
  ASSERT_TRUE(decompress_payload(payload, aligned, &pool).is_ok());
  EXPECT_TRUE(std::ranges::equal(aligned, expected));
}

INSTANTIATE_TEST_SUITE_P(, Streaming,
                         testing::Values("none", "fp16", "bf16", "bf16+huffman", "int8", "int4", "bit2",
                                         "bit1", "bit1:block=64", "deadzone+none", "bitplanes:block=64",
                                         "balanced", "lossless", "topk:k=41", "loco", "loco:k=2048"),
                         [](const auto& info) {
                           std::string name(info.param);
                           for (char& letter : name) letter = std::isalnum(letter) != 0 ? letter : '_';
                           return name;
                         });

}  // namespace
}  // namespace geocomm::codec
