// Payloads of several frames: their layout when some frame is not of the usual size, and received bytes that
// are not what they should be.
#include "cuda_cases.h"

namespace geocomm::codec {
namespace {

constexpr std::size_t kHalvesOfFrame =
    kPayloadFrameBytes / sizeof(std::uint16_t);  // elements of a 16-bit frame

// Float16, two whole frames and a short one.
CudaCase three_frames(std::string_view spec) {
  return {spec_of(spec), DType::Float16, to_bytes(gaussian(2 * kHalvesOfFrame + 1001), DType::Float16)};
}

void set_half(Bytes& elements, std::size_t index, std::uint16_t bits) {
  std::memcpy(elements.data() + 2 * index, &bits, 2);
}

TEST(CudaPayload, test_frames_of_the_usual_size_give_the_bytes_of_the_cpu) {
  for (const std::string_view spec : {"none", "bf16", "int8:block=4096", "bit2:block=512",
                                      "int8:block=1024+huffman", "bit1:block=512+huffman"}) {
    SCOPED_TRACE(spec);
    CudaCase test = three_frames(spec);
    test.options.seed = 77;
    expect_same_payload(test);
  }
}

TEST(CudaPayload, test_raw_blocks_move_the_frames_behind_them) {
  for (const std::string_view spec : {"bit1:block=2048", "int4:block=2048+huffman"}) {
    SCOPED_TRACE(spec);
    CudaCase test = three_frames(spec);
    set_half(test.src, 5000, 0x7C00);
    set_half(test.src, kHalvesOfFrame + 70000, 0x7E01);
    set_half(test.src, 2 * kHalvesOfFrame + 1000, 0xFC00);
    expect_same_payload(test);
    test.residual = to_bytes(gaussian(test.elements(), 0.5f, 2));
    expect_same_payload(test);
  }
}

TEST(CudaPayload, test_a_frame_that_a_cast_cannot_carry_is_one_of_none) {
  // In fp16 a float of 70000; the frame behind it moves.
  CudaCase test{spec_of("fp16"), DType::Float32, to_bytes(gaussian(kHalvesOfFrame / 2 + 900))};
  const float beyond = 70000.0f;
  std::memcpy(test.src.data() + 4000, &beyond, 4);
  expect_same_payload(test);
  test.residual = to_bytes(gaussian(test.elements(), 0.5f, 2), DType::BFloat16);
  test.options.feedback.dtype = DType::BFloat16;
  expect_same_payload(test);
}

TEST(CudaPayload, test_every_dtype_is_carried_as_it_is) {
  const Bytes src = to_bytes(gaussian(777));
  for (const DType dtype : {DType::Float64, DType::Int8, DType::Int16, DType::Int64, DType::Bool}) {
    CudaCase test{CodecSpec{}, dtype, Bytes(src.begin(), src.begin() + 776)};
    expect_same_payload(test);
  }
}

TEST(CudaPayload, test_checksums_may_be_left_to_the_host) {
  CudaCase test{spec_of("int8"), DType::Float32, to_bytes(gaussian(kHalvesOfFrame / 2 + 900))};
  const Encoded host = encode_on_host(test);
  test.options.checksums = cuda::Checksums::Host;
  Encoded device = encode_on_device(test);
  ASSERT_EQ(device.payload.size(), host.payload.size());
  EXPECT_FALSE(device.payload == host.payload);
  for (std::size_t begin = 0; begin < device.payload.size();) {
    const auto sealed = seal_frame(std::span(device.payload).subspan(begin));
    ASSERT_TRUE(sealed.is_ok()) << sealed.status().to_string();
    begin += *sealed;
  }
  EXPECT_TRUE(device.payload == host.payload);
  const Decoded decoded =
      decode_on_device(test.spec, test.dtype, host.payload, Bytes(test.src.size()), test.elements(),
                       Sink::Float32, {cuda::Framing::Payload, cuda::Checksums::Host});
  EXPECT_EQ(decoded.verdict, 0u);
}

// What the device says of a frame of int8 (two whole blocks of 64, a short one) that was tampered with. No
// element may have been written.
core::Status verdict_on(const CodecSpec& spec, const Bytes& frame, std::uint64_t elements,
                        cuda::Checksums checksums = cuda::Checksums::Device) {
  const Bytes old(elements * sizeof(float), std::byte{0x77});
  const Decoded decoded = decode_on_device(spec, DType::Float32, frame, old, elements, Sink::AddToFloat32,
                                           {cuda::Framing::SingleFrame, checksums});
  EXPECT_TRUE(decoded.verdict == 0 || decoded.elements == old);
  return cuda::to_status(decoded.verdict);
}

constexpr std::size_t kElements = 150;

Bytes small_frame(const CodecSpec& spec, bool with_raw_block = false) {
  auto values = gaussian(kElements);
  if (with_raw_block) values[70] = kInf;
  return compressed(spec, DType::Float32, to_bytes(values));
}

TEST(CudaPayload, test_a_frame_cut_short_is_refused_at_every_length) {
  const CodecSpec spec = spec_of("int8:block=64");
  const Bytes frame = small_frame(spec, true);
  EXPECT_TRUE(verdict_on(spec, frame, kElements).is_ok());
  for (std::size_t bytes = 0; bytes < frame.size(); bytes += bytes < 40 ? 1 : 13) {
    const Bytes cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(bytes));
    EXPECT_EQ(verdict_on(spec, cut, kElements).code(), StatusCode::CorruptData) << bytes;
  }
  Bytes longer = frame;
  longer.push_back(std::byte{0});
  EXPECT_EQ(verdict_on(spec, longer, kElements).code(), StatusCode::CorruptData);
}

TEST(CudaPayload, test_a_changed_byte_is_refused) {
  const CodecSpec spec = spec_of("int4:block=64");
  const Bytes frame = small_frame(spec);
  for (std::size_t at = 0; at < frame.size(); ++at) {
    Bytes changed = frame;
    changed[at] ^= std::byte{0x10};
    const auto status = verdict_on(spec, changed, kElements);
    EXPECT_EQ(status.code(), at == 4 ? StatusCode::VersionMismatch : StatusCode::CorruptData) << at;
  }
}

// A hostile peer's checksums are right.
TEST(CudaPayload, test_resealed_frames_do_no_harm) {
  for (const std::string_view text : {"int8:block=64", "bit2:block=64", "fp16", "int8:block=64+huffman"}) {
    SCOPED_TRACE(text);
    const CodecSpec spec = spec_of(text);
    for (const bool with_raw_block : {false, true}) {
      const Bytes frame = small_frame(spec, with_raw_block);
      for (std::size_t at = 0; at < sizeof(FrameHeader) + 12; ++at) {
        for (const int value : {0x00, 0x7F, 0x81}) {
          Bytes changed = frame;
          changed[at] = static_cast<std::byte>(value);
          reseal(changed);
          std::vector<float> sum(kElements, 0.0f);
          const bool is_sound = decompress_accumulate(changed, sum, Accumulate::Add).is_ok();
          const auto status = verdict_on(spec, changed, kElements);
          // The device takes no other codec than the one agreed upon; otherwise it says what the CPU says.
          if (status.is_ok() || (at != 5 && at != 6 && at != 7 && at != 8)) {
            EXPECT_EQ(status.is_ok(), is_sound) << at << ' ' << value << ' ' << status.to_string();
          }
        }
      }
    }
  }
}

TEST(CudaPayload, test_damage_in_a_later_frame_names_it) {
  const CudaCase test = three_frames("int8:block=4096");
  const Bytes payload = encode_on_host(test).payload;
  const std::size_t stride = sizeof(FrameHeader) + 2 * kHalvesOfFrame / 4096 + kHalvesOfFrame;
  for (const std::size_t at : {std::size_t{0}, std::size_t{20}, std::size_t{100000}}) {
    Bytes damaged = payload;
    damaged[stride + at] ^= std::byte{1};
    const Decoded decoded =
        decode_on_device(test.spec, test.dtype, damaged, test.src, test.elements(), Sink::Float16);
    EXPECT_EQ(cuda::to_status(decoded.verdict).code(), StatusCode::CorruptData);
    EXPECT_NE(cuda::to_status(decoded.verdict).message().find("frame 1"), std::string::npos);
    EXPECT_TRUE(decoded.elements == test.src);
  }
}

TEST(CudaPayload, test_bad_arguments_are_refused) {
  const CodecSpec spec = spec_of("int8");
  const DeviceBytes src(4096);
  const DeviceBytes dst(cuda::encoded_bound(spec, DType::Float32, 1000, cuda::Framing::Payload));
  const DeviceBytes workspace(cuda::workspace_bytes(spec, DType::Float32, 1000, cuda::Framing::Payload));
  std::uint64_t out = 0;
  const auto code = [&](const CodecSpec& used, DType dtype, const std::byte* from, std::span<std::byte> to,
                        std::span<std::byte> work, const cuda::EncodeOptions& options = {}) {
    return cuda::compress_payload(used, dtype, from, 1000, to, options, work, &out, nullptr).code();
  };
  const auto to = dst.span();
  const auto work = workspace.span();
  EXPECT_EQ(code(spec, DType::Float32, src.data(), to, work), StatusCode::Ok);
  EXPECT_EQ(code(spec, DType::Int32, src.data(), to, work), StatusCode::Unsupported);
  EXPECT_EQ(code(spec_of("int8+zstd"), DType::Float32, src.data(), to, work), StatusCode::Unsupported);
  EXPECT_EQ(code(spec, DType::Float32, src.data() + 1, to, work), StatusCode::InvalidArgument);
  EXPECT_EQ(code(spec, DType::Float32, src.data(), to.subspan(4), work), StatusCode::InvalidArgument);
  EXPECT_EQ(code(spec, DType::Float32, src.data(), to.first(to.size() - 1), work),
            StatusCode::OutputTooSmall);
  EXPECT_EQ(code(spec, DType::Float32, src.data(), to, work.first(work.size() - 1)),
            StatusCode::InvalidArgument);
  cuda::EncodeOptions options;
  options.feedback = {src.data(), DType::Float32, 999};
  EXPECT_EQ(code(spec, DType::Float32, src.data(), to, work, options), StatusCode::InvalidArgument);
}

}  // namespace
}  // namespace geocomm::codec
