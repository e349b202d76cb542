// Codecs whose frames consist of sections of sizes that only the device knows: payloads of several frames,
// and frames of a hostile peer, whose checksums are right. Whatever the bytes are, the device says what the
// CPU says.
#include <random>

#include "cuda_cases.h"

namespace geocomm::codec {
namespace {

constexpr std::size_t kFloatsOfFrame = kPayloadFrameBytes / sizeof(float);

void set_float(Bytes& elements, std::size_t index, float value) {
  std::memcpy(elements.data() + sizeof(float) * index, &value, sizeof(value));
}

// Sums as the device and the CPU make them of a frame; neither may touch them if it refuses the frame.
void expect_same_answer(const CodecSpec& spec, DType dtype, const Bytes& frame, std::size_t elements,
                        const std::string& what) {
  std::vector<float> sum = gaussian(elements, 2.0f, 4);
  const Bytes old = to_bytes(sum);
  const bool is_sound = decompress_accumulate(frame, sum, Accumulate::Add).is_ok();
  const Decoded decoded = decode_on_device(spec, dtype, frame, old, elements, Sink::AddToFloat32,
                                           {cuda::Framing::SingleFrame, cuda::Checksums::Device}, 3);
  const auto status = cuda::to_status(decoded.verdict);
  ASSERT_EQ(status.is_ok(), is_sound) << what << ' ' << status.to_string();
  if (!is_sound) {
    ASSERT_TRUE(decoded.elements == old) << what;
    return;
  }
  const auto got = to_floats(decoded.elements);
  for (std::size_t i = 0; i < elements; ++i) {
    ASSERT_TRUE(got[i] == sum[i] || (std::isnan(got[i]) && std::isnan(sum[i]))) << what << ' ' << i;
  }
}

struct HostileCase {
  std::string_view spec;
  DType dtype = DType::Float32;
};

// Every byte of the payload changed in some way, and every section cut short or made longer.
void expect_no_harm(const HostileCase& test, const std::vector<float>& values) {
  SCOPED_TRACE(test.spec);
  const CodecSpec spec = spec_of(test.spec);
  const Bytes frame = compressed(spec, test.dtype, to_bytes(values, test.dtype));
  const std::size_t header = sizeof(FrameHeader);
  ASSERT_EQ(static_cast<std::uint8_t>(frame[5]), static_cast<std::uint8_t>(spec.id)) << "a frame of None";
  expect_same_answer(spec, test.dtype, frame, values.size(), "as it is");
  const std::size_t step = 1 + (frame.size() - header) / 120;
  for (std::size_t at = header; at < frame.size(); at += at < header + 24 ? 1 : step) {
    for (const unsigned change : {0x01u, 0x80u, 0xFFu}) {
      Bytes changed = frame;
      changed[at] ^= static_cast<std::byte>(change);
      reseal(changed);
      expect_same_answer(spec, test.dtype, changed, values.size(),
                         "byte " + std::to_string(at) + " ^ " + std::to_string(change));
    }
  }
  for (const int more : {-9, -2, -1, 1, 2, 40}) {
    Bytes changed = frame;
    changed.resize(frame.size() + static_cast<std::size_t>(more));
    const std::uint64_t payload_bytes = changed.size() - header;
    std::memcpy(changed.data() + offsetof(FrameHeader, payload_bytes), &payload_bytes, sizeof(payload_bytes));
    reseal(changed);
    expect_same_answer(spec, test.dtype, changed, values.size(), std::to_string(more) + " bytes more");
  }
}

TEST(CudaSections, test_dead_zone_payloads_of_several_frames) {
  for (const std::string_view spec :
       {"deadzone", "deadzone:block=512+none", "bitplanes:step=0.3", "bitplanes:block=512+none"}) {
    SCOPED_TRACE(spec);
    CudaCase test{spec_of(spec), DType::Float32, to_bytes(gaussian(kFloatsOfFrame + 5001))};
    expect_same_payload(test);
    // Raw blocks: not finite, and of one value that dwarfs the others.
    set_float(test.src, 70000, kInf);
    for (std::size_t i = 8192; i < 12288; ++i) set_float(test.src, i, i == 9000 ? 1e6f : 1e-6f);
    set_float(test.src, kFloatsOfFrame + 5000, kNan);
    test.residual = to_bytes(gaussian(test.elements(), 0.5f, 2), DType::BFloat16);
    test.options.feedback.dtype = DType::BFloat16;
    test.options.feedback.decay = 0.75f;
    expect_same_payload(test);
  }
}

// One value among zeros is 64 times their rms in a block of 4096: from a step of 0.5016 on its code fits.
TEST(CudaSections, test_dead_zone_codes_at_their_limit) {
  for (const float factor : {0.4f, 0.5f, 0.503f, 0.505f, 0.51f, 0.6f}) {
    std::vector<float> values(4096, 0.0f);
    values[1234] = -3.5f;
    CodecSpec spec = spec_of("deadzone");
    spec.step = factor;
    CudaCase test{spec, DType::Float32, to_bytes(values)};
    test.options.framing = cuda::Framing::SingleFrame;
    const Encoded device = encode_on_device(test);
    EXPECT_TRUE(device.payload == encode_on_host(test).payload) << factor;
  }
}

TEST(CudaSections, test_hostile_dead_zone_frames_do_no_harm) {
  auto values = gaussian(310);
  values[70] = kInf;
  expect_no_harm({"deadzone:block=64"}, values);
  expect_no_harm({"deadzone:block=64+none", DType::Float16}, values);
  expect_no_harm({"deadzone:block=128+none"}, gaussian(300));
  expect_no_harm({"bitplanes:block=64,step=0.3"}, values);
  expect_no_harm({"bitplanes:block=128,step=0.1+none"}, gaussian(300));
}

// Floats of which every `every`-th has a lower half that is not zero; 0: none has.
Bytes with_lower_halves(std::size_t elements, std::size_t every) {
  Bytes bytes = to_bytes(gaussian(elements));
  for (std::size_t i = 0; i < elements; ++i) {
    if (every == 0 || i % every != 0) std::memset(bytes.data() + 4 * i, 0, 2);
  }
  return bytes;
}

// The three modes, each with its own run of planes, and what does not shrink.
TEST(CudaSections, test_every_mode_of_lossless) {
  for (const std::string_view spec : {"lossless", "lossless+none"}) {
    for (const std::size_t every : {0u, 1u, 2u, 17u}) {
      SCOPED_TRACE(std::string(spec) + ", one of " + std::to_string(every));
      CudaCase test{spec_of(spec), DType::Float32, with_lower_halves(9001, every)};
      expect_same_payload(test);
    }
  }
  // 15 of 16 are the most that a bitmap is worth.
  for (const std::size_t zeros : {64u, 63u}) {
    Bytes bytes = with_lower_halves(1024, 1);
    for (std::size_t i = 0; i < 1024; ++i) bytes[4 * i] |= std::byte{1};
    for (std::size_t i = 0; i < zeros; ++i) std::memset(bytes.data() + 64 * i, 0, 2);
    expect_same_payload({spec_of("lossless"), DType::Float32, bytes});
  }
}

TEST(CudaSections, test_every_bit_pattern_survives_lossless) {
  Bytes bytes(2 * 65536);
  for (std::size_t i = 0; i < 65536; ++i) {
    const std::uint16_t bits = static_cast<std::uint16_t>(i);
    std::memcpy(bytes.data() + 2 * i, &bits, 2);
  }
  for (const DType dtype : {DType::Float16, DType::BFloat16, DType::Float32}) {
    SCOPED_TRACE(core::to_string(dtype));
    Bytes repeated = bytes;  // so that it shrinks
    for (std::size_t i = 0; i < bytes.size() / 2; i += 4)
      std::memcpy(&repeated[bytes.size() / 2 + i], &bytes[4], 4);
    const CudaCase test{spec_of("lossless"), dtype, repeated};
    expect_same_payload(test);
    const Bytes payload = encode_on_device(test).payload;
    EXPECT_EQ(static_cast<int>(payload[5]), static_cast<int>(CodecId::Lossless));
    EXPECT_TRUE(
        decode_on_device(test.spec, dtype, payload, Bytes(bytes.size()), test.elements(), sink_of(dtype))
            .elements == repeated);
  }
}

// A frame of noise is one of None between others.
TEST(CudaSections, test_lossless_payloads_of_several_frames) {
  Bytes bytes = with_lower_halves(2 * kFloatsOfFrame + 700, 5);
  std::mt19937 random(5);
  for (std::size_t i = 0; i < kPayloadFrameBytes; i += 4) {
    const auto word = static_cast<std::uint32_t>(random());
    std::memcpy(bytes.data() + kPayloadFrameBytes + i, &word, 4);
  }
  expect_same_payload({spec_of("lossless"), DType::Float32, bytes});
}

TEST(CudaSections, test_hostile_lossless_frames_do_no_harm) {
  const std::vector<float> values = to_floats(with_lower_halves(700, 9));
  expect_no_harm({"lossless"}, values);
  expect_no_harm({"lossless+none"}, values);
  expect_no_harm({"lossless", DType::BFloat16}, gaussian(900));
}

// What the cast cannot carry makes frames of None, which move those behind them.
TEST(CudaSections, test_staged_casts_of_several_frames) {
  CudaCase test{spec_of("fp16+huffman"), DType::Float32, to_bytes(gaussian(2 * kFloatsOfFrame + 900))};
  set_float(test.src, kFloatsOfFrame + 77, 70000.0f);
  expect_same_payload(test);
  test.residual = to_bytes(gaussian(test.elements(), 0.5f, 2));
  expect_same_payload(test);
}

TEST(CudaSections, test_hostile_staged_casts_do_no_harm) {
  expect_no_harm({"bf16+huffman"}, gaussian(900));
  expect_no_harm({"fp16+huffman", DType::BFloat16}, gaussian(900));
}

}  // namespace
}  // namespace geocomm::codec
