#include <gtest/gtest.h>

#include <latch>

#include "codec/payload/payload.h"
#include "codec/quantizers/top_k/top_k_format.h"
#include "codec_cases.h"

namespace geocomm::codec {
namespace {

constexpr std::size_t kPerFrame = kPayloadFrameBytes / sizeof(float);

Bytes encoded_payload(const CodecSpec& spec, DType dtype, std::span<const std::byte> src,
                      const CompressOptions& options = {}, core::ThreadPool* pool = nullptr) {
  Bytes dst(payload_bound(spec, dtype, src.size() / core::size_of(dtype)));
  const auto size = compress_payload(spec, dtype, src, dst, options, pool);
  EXPECT_TRUE(size.is_ok()) << size.status().to_string();
  dst.resize(size.is_ok() ? *size : 0);
  return dst;
}

class Payload : public testing::TestWithParam<std::string_view> {
 protected:
  const CodecSpec spec_ = spec_of(GetParam());
};

TEST_P(Payload, test_payload_of_any_length_equals_its_frames) {
  const auto all = gaussian(2 * kPerFrame + 1, 0.1f);
  core::ThreadPool pool(2, "codec");
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, kPerFrame - 1,
                                   kPerFrame, kPerFrame + 1, 2 * kPerFrame, 2 * kPerFrame + 1}) {
    const Bytes src = to_bytes(std::span(all).first(length));
    const Bytes payload = encoded_payload(spec_, DType::Float32, src, {.seed = 4});
    EXPECT_LE(payload.size(), payload_bound(spec_, DType::Float32, length));
    const auto info = inspect_payload(payload);
    ASSERT_TRUE(info.is_ok());
    EXPECT_EQ(info->spec, spec_);
    EXPECT_EQ(info->dtype, DType::Float32);
    EXPECT_EQ(info->elements, length);
    EXPECT_EQ(info->raw_bytes, src.size());
    EXPECT_EQ(info->frames, std::max<std::size_t>((length + kPerFrame - 1) / kPerFrame, 1));

    Bytes expected(src.size());
    std::size_t at = 0;
    for (std::size_t first = 0; at < payload.size(); first += kPerFrame) {
      const std::size_t count = std::min(kPerFrame, length - first);
      const Bytes frame = compressed(spec_, DType::Float32, std::span(src).subspan(4 * first, 4 * count),
                                     {.seed = 4, .first_element = first});
      ASSERT_TRUE(std::ranges::equal(frame, std::span(payload).subspan(at, frame.size())));
      ASSERT_TRUE(decompress(frame, std::span(expected).subspan(4 * first, 4 * count)).is_ok());
      at += frame.size();
    }
    Bytes out(src.size());
    EXPECT_TRUE(decompress_payload(payload, out).is_ok());
    EXPECT_EQ(out, expected);
    Bytes again(src.size());
    EXPECT_TRUE(decompress_payload(payload, again, &pool).is_ok());
    EXPECT_EQ(again, expected);
  }
}

TEST_P(Payload, test_any_number_of_threads_gives_the_same_bytes_and_residual) {
  auto values = gaussian(5 * kPerFrame + 77);
  values[kPerFrame + 5] = kNan;
  const Bytes src = to_bytes(values);
  std::vector<float> expected_residual(values.size(), 0.01f);
  const Bytes expected =
      encoded_payload(spec_, DType::Float32, src, {.feedback = feedback(expected_residual), .seed = 8});
  for (const std::size_t threads : {1u, 2u, 5u}) {
    core::ThreadPool pool(threads, "codec");
    std::vector<float> residual(values.size(), 0.01f);
    EXPECT_EQ(encoded_payload(spec_, DType::Float32, src, {.feedback = feedback(residual), .seed = 8}, &pool),
              expected);
    EXPECT_TRUE(same_bits(residual, expected_residual));
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Payload,
                         testing::Values("none", "fp16", "int8", "int4:block=64,round=stochastic", "topk",
                                         "loco"),
                         case_name);

// The caller does the work itself where the pool's threads are all taken, by itself or by others.
TEST(PayloadPool, test_compress_from_inside_a_busy_pool_ends) {
  const Bytes src = to_bytes(gaussian(3 * kPerFrame));
  const Bytes expected = encoded_payload(spec_of("int8"), DType::Float32, src);
  std::latch both(2);
  std::vector<Bytes> results(2);
  {
    core::ThreadPool pool(2, "codec");
    for (auto& result : results) {
      pool.submit([&] {
        both.arrive_and_wait();
        result = encoded_payload(spec_of("int8"), DType::Float32, src, {}, &pool);
      });
    }
  }
  EXPECT_EQ(results[0], expected);
  EXPECT_EQ(results[1], expected);
}

// Frames that are larger than usual, in any places among others, and after the last whole one.
TEST(PayloadPool, test_frames_with_raw_blocks_among_others_give_the_same_bytes) {
  constexpr std::size_t kFrames = 5;  // and a shorter one
  const auto finite = gaussian(kFrames * kPerFrame + 1234);
  for (const auto text : {"fp16", "int8", "int8+huffman", "bit1", "deadzone", "bitplanes", "lossless"}) {
    const CodecSpec spec = spec_of(text);
    for (const unsigned large : {0x01u, 0x10u, 0x0Au, 0x15u, 0x1Fu, 0x0Cu, 0x20u, 0x3Fu}) {
      auto values = finite;
      for (std::size_t frame = 0; frame <= kFrames; ++frame) {
        if ((large >> frame & 1) == 0) continue;
        const std::size_t end = std::min(values.size(), (frame + 1) * kPerFrame);
        for (std::size_t i = frame * kPerFrame; i < end; i += 1 + frame * 1000) values[i] = kInf;
        values[end - 1] = 1e30f;  // no fp16
      }
      const Bytes src = to_bytes(values);
      const Bytes expected = encoded_payload(spec, DType::Float32, src);
      core::ThreadPool pool(3, "codec");
      ASSERT_TRUE(encoded_payload(spec, DType::Float32, src, {}, &pool) == expected) << text << ' ' << large;
    }
  }
}

TEST(PayloadBound, test_usual_bound_of_a_fixed_rate_is_the_size_of_finite_frames) {
  for (const auto text :
       {"none", "fp16", "bf16", "int8", "int8:block=64", "int4:block=128", "bit2", "bit1:block=4096"}) {
    const CodecSpec spec = spec_of(text);
    for (const DType dtype : kFloatTypes) {
      for (const std::size_t length : {0u, 1u, 63u, 64u, 1000u, 70000u}) {
        const Bytes src = to_bytes(gaussian(length), dtype);
        EXPECT_EQ(compressed(spec, dtype, src).size(), usual_compress_bound(spec, dtype, length)) << text;
      }
    }
  }
}

TEST(PayloadBound, test_usual_bound_of_any_codec_holds_for_finite_values) {
  for (const auto text : {"bf16+huffman", "int8+huffman", "deadzone", "deadzone+none", "bitplanes",
                          "bitplanes+none", "topk", "lossless"}) {
    const CodecSpec spec = spec_of(text);
    for (const DType dtype : kFloatTypes) {
      for (const std::size_t length : {0u, 1u, 63u, 1000u, 70000u}) {
        std::vector<float> residual(length);
        const Bytes src = to_bytes(gaussian(length), dtype);
        const std::size_t size = compressed(spec, dtype, src, {.feedback = feedback(residual)}).size();
        EXPECT_LE(size, usual_compress_bound(spec, dtype, length)) << text;
        EXPECT_LE(size, compress_bound(spec, dtype, length)) << text;
      }
    }
  }
}

TEST(PayloadErrors, test_compress_into_less_than_the_bound_leaves_the_residual) {
  const Bytes src = to_bytes(gaussian(1000));
  std::vector<float> residual(1000, 0.5f);
  Bytes dst(payload_bound(spec_of("int8"), DType::Float32, 1000) - 1);
  const CompressOptions options{.feedback = feedback(residual)};
  EXPECT_EQ(compress_payload(spec_of("int8"), DType::Float32, src, dst, options).status().code(),
            StatusCode::OutputTooSmall);
  EXPECT_TRUE(same_bits(residual, std::vector<float>(1000, 0.5f)));
}

TEST(PayloadErrors, test_compress_of_bad_arguments_is_refused) {
  Bytes dst(1 << 16);
  const Bytes src(64);
  std::vector<float> residual(15);
  const CodecSpec int8 = spec_of("int8");
  EXPECT_EQ(compress_payload(int8, DType::Float32, std::span(src).first(63), dst).status().code(),
            StatusCode::InvalidArgument);
  EXPECT_EQ(
      compress_payload(int8, DType::Float32, src, dst, {.feedback = feedback(residual)}).status().code(),
      StatusCode::InvalidArgument);
  EXPECT_EQ(compress_payload(int8, DType::Int32, src, dst).status().code(), StatusCode::Unsupported);
}

TEST(PayloadErrors, test_damaged_payloads_are_refused) {
  const Bytes src = to_bytes(gaussian(2 * kPerFrame + 100));
  const Bytes good = encoded_payload(spec_of("int4"), DType::Float32, src);
  Bytes out(src.size());
  EXPECT_EQ(inspect_payload({}).status().code(), StatusCode::CorruptData);
  // A frame missing at the end is a shorter payload; part of a frame is an error.
  const std::size_t frame = good.size() / 2 - 1000;
  for (const std::size_t cut : {std::size_t{1}, std::size_t{31}, frame, good.size() - 1}) {
    EXPECT_EQ(inspect_payload(std::span(good).first(good.size() - cut)).status().code(),
              StatusCode::CorruptData);
  }
  Bytes trailing = good;
  trailing.push_back(std::byte{0});
  EXPECT_EQ(decompress_payload(trailing, out).code(), StatusCode::CorruptData);
  Bytes damaged = good;
  damaged[good.size() - 1] ^= std::byte{1};
  core::ThreadPool pool(2, "codec");
  EXPECT_TRUE(inspect_payload(damaged).is_ok());
  EXPECT_EQ(decompress_payload(damaged, out, &pool).code(), StatusCode::CorruptData);
}

TEST(PayloadErrors, test_decompress_to_another_size_is_refused) {
  const Bytes payload = encoded_payload(spec_of("bf16"), DType::Float32, to_bytes(gaussian(100)));
  Bytes smaller(396);
  Bytes larger(404);
  EXPECT_EQ(decompress_payload(payload, smaller).code(), StatusCode::OutputTooSmall);
  EXPECT_EQ(decompress_payload(payload, larger).code(), StatusCode::InvalidArgument);
}

TEST(PayloadErrors, test_frames_of_two_dtypes_are_corrupt) {
  Bytes payload = compressed(CodecSpec{}, DType::Float32, Bytes(40));
  const Bytes other = compressed(CodecSpec{}, DType::Int32, Bytes(40));
  payload.insert(payload.end(), other.begin(), other.end());
  EXPECT_EQ(inspect_payload(payload).status().code(), StatusCode::CorruptData);
}

TEST(PayloadErrors, test_a_frame_of_more_elements_than_a_writer_puts_there_is_corrupt) {
  // Zeros: few bytes that would have a reader make room for all of their elements.
  const Bytes most = compressed(spec_of("small"), DType::Float32, Bytes(kPayloadFrameBytes));
  const Bytes more = compressed(spec_of("small"), DType::Float32, Bytes(kPayloadFrameBytes + 4));
  EXPECT_TRUE(inspect_payload(most).is_ok());
  EXPECT_EQ(inspect_payload(more).status().code(), StatusCode::CorruptData);
}

TEST(PayloadInfo, test_inspect_after_resort_to_none_tells_the_codec_of_the_rest) {
  auto values = gaussian(2 * kPerFrame);
  values[0] = 1e30f;
  const Bytes payload = encoded_payload(spec_of("fp16"), DType::Float32, to_bytes(values));
  EXPECT_EQ(inspect_payload(payload)->spec, spec_of("fp16"));
  Bytes out(4 * values.size());
  ASSERT_TRUE(decompress_payload(payload, out).is_ok());
  EXPECT_EQ(to_floats(out)[0], 1e30f);
}

TEST(PayloadInfo, test_inspect_tells_lossless_where_a_later_frame_is_one_of_none) {
  const Bytes payload =
      encoded_payload(spec_of("lossless"), DType::Float32, to_bytes(gaussian(kPerFrame + 37)));
  const std::size_t first =
      compressed(spec_of("lossless"), DType::Float32, to_bytes(gaussian(kPerFrame))).size();
  EXPECT_EQ(inspect_payload(std::span(payload).subspan(first))->spec, CodecSpec{});
  EXPECT_EQ(inspect_payload(payload)->spec, spec_of("lossless"));
}

TEST(PayloadInfo, test_payload_of_wide_and_narrow_dtypes_is_exact) {
  for (const DType dtype : {DType::UInt8, DType::Int64, DType::BFloat16}) {
    Bytes src(kPayloadFrameBytes + 8 * core::size_of(dtype));
    for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<std::byte>(i * 7);
    const Bytes payload = encoded_payload(CodecSpec{}, dtype, src);
    EXPECT_EQ(inspect_payload(payload)->frames, 2u);
    Bytes out(src.size());
    ASSERT_TRUE(decompress_payload(payload, out).is_ok());
    EXPECT_EQ(out, src);
  }
}

}  // namespace
}  // namespace geocomm::codec
