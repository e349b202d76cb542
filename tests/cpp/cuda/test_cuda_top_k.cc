// TopK on the device: what is chosen, where it is hard to say, and received frames of any sender.
#include "codec/cuda/verdict.h"
#include "codec/quantizers/loco/loco_format.h"
#include "cuda_cases.h"
#include "simt.h"
#include "top_k_cases.h"

namespace geocomm::codec {
namespace {

void expect_same_frames(const CudaCase& test, const std::string& what) {
  const Encoded device = encode_on_device(test);
  const Encoded host = encode_on_host(test);
  ASSERT_EQ(device.payload.size(), host.payload.size()) << what;
  const auto differs = std::ranges::mismatch(device.payload, host.payload);
  ASSERT_TRUE(device.payload == host.payload) << what << ", byte " << differs.in1 - device.payload.begin();
  ASSERT_TRUE(device.residual == host.residual) << what;
  Bytes own(test.src.size());
  const bool is_frame = test.options.framing == cuda::Framing::SingleFrame;
  ASSERT_TRUE((is_frame ? decompress(host.payload, own) : decompress_payload(host.payload, own)).is_ok());
  const Decoded decoded = decode_on_device(test.spec, test.dtype, host.payload, Bytes(own.size()),
                                           test.elements(), sink_of(test.dtype), {test.options.framing});
  ASSERT_EQ(decoded.verdict, 0u) << what << ": " << cuda::to_status(decoded.verdict).to_string();
  ASSERT_TRUE(decoded.elements == own) << what;
}

class CudaTopK : public testing::TestWithParam<std::string_view> {};

TEST_P(CudaTopK, test_all_data_gives_the_bytes_of_the_cpu) {
  for (const Data data : kAllData) {
    const auto values = make_data(data, 9000);
    const std::string what = "data " + std::to_string(static_cast<int>(data));
    CudaCase test = single_frame(GetParam(), values);
    expect_same_frames(test, what);
    test = single_frame(GetParam(), values, data == Data::Growing ? DType::BFloat16 : DType::Float16);
    test.residual = to_bytes(make_data(data, 9000, 2), DType::BFloat16);
    test.options.feedback = {nullptr, DType::BFloat16, 0, 0.7f};
    expect_same_frames(test, what + " with a residual");
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, CudaTopK,
                         testing::Values("topk:k=64,values=bit2", "topk:k=1,values=bf16", "topk:k=300",
                                         "topk:k=342,values=fp32", "topk:k=2048,values=bit2", "loco",
                                         "loco:k=1", "loco:k=41", "loco:k=300", "loco:k=2048"),
                         case_name);

TEST(CudaTopKFrames, test_order_of_threads_does_not_matter) {
  simt::set_order(simt::Order::Backward);
  CudaCase test = single_frame("topk:k=500", make_data(Data::Ties, 9000));
  test.residual = to_bytes(gaussian(9000, 0.5f, 3));
  expect_same_frames(test, "backward");
  test.spec = spec_of("loco:k=500");
  expect_same_frames(test, "backward, loco");
  simt::set_order(simt::Order::Forward);
}

// A frame of more chunks than a block of threads places at once, and an index of several tiles and blocks of
// the stage; all in gaps, of which some are long.
TEST(CudaTopKFrames, test_large_frames) {
  auto values = gaussian((std::size_t{258} << 12) + 77);
  expect_same_frames(single_frame("topk:k=2,values=bit2", values), "many chunks");
  values[1 << 19] = kNan;
  values[1 << 13] = kInf;
  expect_same_frames(single_frame("loco:k=2", values), "many chunks, loco");
  values.resize((std::size_t{14} << 12) + 3);
  expect_same_frames(single_frame("topk:k=340", values), "several tiles");
}

// Of 16-bit elements, two whole frames and a short one. The device takes frames of None between others.
class CudaTopKPayloads : public testing::TestWithParam<std::string_view> {};

TEST_P(CudaTopKPayloads, test_payloads_of_several_frames) {
  constexpr std::size_t kFrame = kPayloadFrameBytes / sizeof(std::uint16_t);
  const std::size_t elements = 2 * kFrame + 1001;
  const auto values = gaussian(elements);
  CudaCase test{spec_of(GetParam()), DType::Float16, to_bytes(values, DType::Float16)};
  test.residual = to_bytes(gaussian(elements, 0.3f, 8));
  expect_same_frames(test, "payload");

  const auto source = std::span(test.src);
  Bytes payload = compressed(test.spec, DType::Float16, source.first(2 * kFrame));
  for (const auto& [spec, first, bytes] :
       {std::tuple{CodecSpec{}, 2 * kFrame, 2 * kFrame}, {test.spec, 4 * kFrame, std::size_t{2002}}}) {
    const Bytes frame = compressed(spec, DType::Float16, source.subspan(first, bytes));
    payload.insert(payload.end(), frame.begin(), frame.end());
  }
  Bytes expected(test.src.size());
  ASSERT_TRUE(decompress_payload(payload, expected).is_ok());
  const Decoded decoded =
      decode_on_device(test.spec, DType::Float16, payload, Bytes(expected.size()), elements, Sink::Float16);
  ASSERT_EQ(decoded.verdict, 0u) << cuda::to_status(decoded.verdict).to_string();
  ASSERT_TRUE(decoded.elements == expected);
}

INSTANTIATE_TEST_SUITE_P(Specs, CudaTopKPayloads, testing::Values("tiny", "loco"), case_name);

// The settings of a sender are not those of the receiver.
TEST(CudaTopKFrames, test_frames_of_any_settings_are_read) {
  auto values = make_data(Data::Special, 5000);
  for (const std::string_view text : {"topk:k=900,values=fp32", "topk:k=3,values=bf16", "topk:k=700",
                                      "topk:k=2000,values=bit2", "loco:k=1", "loco:k=900"}) {
    const Bytes frame = compressed(spec_of(text), DType::Float32, to_bytes(values));
    for (const Sink sink : {Sink::Float32, Sink::AddToFloat32}) {
      auto expected = gaussian(5000, 2.0f, 4);
      const Bytes old = to_bytes(expected);
      const auto mode = sink == Sink::Float32 ? Accumulate::Assign : Accumulate::Add;
      ASSERT_TRUE(decompress_accumulate(frame, expected, mode).is_ok());
      const Decoded decoded =
          decode_on_device(spec_of(text).id == CodecId::Loco ? spec_of("loco") : spec_of("tiny"),
                           DType::Float32, frame, old, 5000, sink, {cuda::Framing::SingleFrame}, 3);
      ASSERT_EQ(decoded.verdict, 0u) << text;
      const auto got = to_floats(decoded.elements);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]))) << text << i;
      }
    }
  }
}

// What no encoder of ours writes, and a reader takes: all elements, by gaps of 0.
TEST(CudaTopKFrames, test_gaps_may_name_every_element) {
  const auto values = gaussian(5000);
  const Bytes frame = frame_of(spec_of("topk"), 5000, payload_of({5000, 5000, 0, 0, 0}, Bytes(5000), values));
  const Decoded decoded = decode_on_device(spec_of("topk"), DType::Float32, frame, Bytes(20000), 5000,
                                           Sink::Float32, {cuda::Framing::SingleFrame});
  ASSERT_EQ(decoded.verdict, 0u) << cuda::to_status(decoded.verdict).to_string();
  EXPECT_TRUE(decoded.elements == to_bytes(values));
}

// Whatever the frame is, the device says what the CPU says, and where it refuses has written nothing.
void expect_same_verdict(const Bytes& frame, std::uint32_t elements, const std::string& what,
                         const CodecSpec& spec = spec_of("topk")) {
  auto expected = gaussian(elements, 2.0f, 4);
  const Bytes old = to_bytes(expected);
  const bool is_sound = decompress_accumulate(frame, expected, Accumulate::Add).is_ok();
  const Decoded decoded = decode_on_device(spec, DType::Float32, frame, old, elements, Sink::AddToFloat32,
                                           {cuda::Framing::SingleFrame});
  ASSERT_EQ(decoded.verdict == 0, is_sound) << what << ": " << cuda::to_status(decoded.verdict).to_string();
  if (!is_sound) {
    ASSERT_EQ(cuda::to_status(decoded.verdict).code(), StatusCode::CorruptData) << what;
    ASSERT_TRUE(decoded.elements == old) << what;
    return;
  }
  const auto got = to_floats(decoded.elements);
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]))) << what << ' ' << i;
  }
}

TEST(CudaTopKForged, test_forged_heads_and_places_are_refused) {
  constexpr float kTwo[] = {1.0f, 2.0f};
  constexpr std::uint8_t kGaps = 0;
  constexpr std::uint8_t kBitmap = 1;
  const auto try_one = [&](const TopKHead& head, std::uint32_t elements, std::initializer_list<int> index) {
    const std::string what = "count " + std::to_string(head.count) + ", index of " +
                             std::to_string(head.index_bytes) + " for " + std::to_string(elements);
    expect_same_verdict(frame_of(spec_of("topk"), elements, payload_of(head, index, kTwo)), elements, what);
  };
  try_one({2, 3, kGaps, 0, 0}, 300, {1, 255, 42});  // sound
  try_one({2, 2, kBitmap, 0, 0}, 11, {1, 4});       // sound
  try_one({2, 2, 2, 0, 0}, 300, {1, 1});
  try_one({2, 2, kGaps, 4, 0}, 300, {1, 1});
  try_one({2, 2, kGaps, 0, 1}, 300, {1, 1});
  try_one({301, 2, kGaps, 0, 0}, 300, {1, 1});
  try_one({0, 2, kGaps, 0, 0}, 300, {1, 1});
  try_one({0, 0, kGaps, 0, 0}, 300, {});
  try_one({2, 0, kGaps, 0, 0}, 300, {});
  try_one({2, 1, kGaps, 0, 0}, 300, {1});
  try_one({2, 4, kGaps, 0, 0}, 300, {1, 255, 0, 1});
  try_one({2, 0xFFFFFFFF, kGaps, 0, 0}, 300, {1, 1});
  try_one({0xFFFFFFFF, 2, kGaps, 0, 0}, 300, {1, 1});
  try_one({2, 2, kBitmap, 0, 0}, 300, {1, 1});
  try_one({1, 2, kGaps, 0, 0}, 300, {1, 1});
  try_one({3, 3, kGaps, 0, 0}, 300, {1, 1, 1});
  try_one({2, 2, kGaps, 0, 0}, 256, {1, 254});       // behind the end
  try_one({2, 3, kGaps, 0, 0}, 300, {1, 255, 43});   // behind the end
  try_one({2, 3, kGaps, 0, 0}, 300, {255, 1, 255});  // ends inside a place
  try_one({2, 3, kGaps, 0, 0}, 300, {255, 255, 1});  // one place only
  try_one({2, 3, kGaps, 0, 0}, 600, {1, 1, 1});      // three places
  try_one({2, 2, kBitmap, 0, 0}, 11, {1, 8});        // behind the end
  try_one({2, 2, kBitmap, 0, 0}, 11, {1, 0});        // one place
  try_one({2, 2, kBitmap, 0, 0}, 11, {1, 6});        // three places
}

class CudaTopKDamage : public testing::TestWithParam<std::string_view> {
 protected:
  static constexpr std::uint32_t kElements = 700;
  Bytes good() const {
    auto values = gaussian(kElements);
    values[100] = kInf;
    return compressed(spec_of(GetParam()), DType::Float32, to_bytes(values));
  }
};

TEST_P(CudaTopKDamage, test_damaged_bytes_do_no_harm) {
  const Bytes frame = good();
  const std::size_t step = 1 + frame.size() / 150;
  for (std::size_t at = sizeof(FrameHeader); at < frame.size();
       at += at < sizeof(FrameHeader) + 40 ? 1 : step) {
    Bytes bad = frame;
    bad[at] ^= at % 3 == 0 ? std::byte{0x80} : at % 3 == 1 ? std::byte{0x01} : std::byte{0xFF};
    reseal(bad);
    expect_same_verdict(bad, kElements, "byte " + std::to_string(at), spec_of(GetParam()));
  }
}

TEST_P(CudaTopKDamage, test_payloads_of_other_lengths_are_refused) {
  const Bytes frame = good();
  const auto payload = std::span(frame).subspan(sizeof(FrameHeader));
  for (std::size_t size = 0; size < payload.size(); size += 1 + size / 12) {
    expect_same_verdict(frame_of(spec_of(GetParam()), kElements, payload.first(size)), kElements,
                        "cut to " + std::to_string(size), spec_of(GetParam()));
  }
  for (const std::size_t more : {1, 4, 64}) {
    Bytes longer(payload.size() + more);
    std::ranges::copy(payload, longer.begin());
    expect_same_verdict(frame_of(spec_of(GetParam()), kElements, longer), kElements, "longer",
                        spec_of(GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, CudaTopKDamage,
                         testing::Values("topk:values=fp32", "topk:values=bf16", "topk:k=1000",
                                         "topk:k=300,values=bit2", "topk:k=2000,values=bit2", "loco",
                                         "loco:k=700", "loco:k=2048"),
                         case_name);

// Zeros choose the first: their ones stand side by side, so that low parts have to ascend.
TEST(CudaTopKForged, test_bits_of_loco_places_are_checked_as_on_the_cpu) {
  for (const std::string_view text : {"loco", "loco:k=300", "loco:k=2048"}) {
    const CodecSpec spec = spec_of(text);
    const LocoPlaces shape = loco_layout(spec, 700).places(0);
    for (const Data data : {Data::Zeros, Data::Gaussian}) {
      const Bytes good = compressed(spec, DType::Float32, to_bytes(make_data(data, 700)));
      const std::size_t first = 8 * (sizeof(FrameHeader) + sizeof(LocoHead) + sizeof(LocoLevels));
      for (std::size_t bit = first; bit < first + 8 * shape.bytes(); bit += 1 + shape.bytes() / 20) {
        Bytes bad = good;
        bad[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        // Where these two differ they change places.
        if (bit % 2 != 0) bad[(bit + 1) / 8] ^= static_cast<std::byte>(1u << (bit + 1) % 8);
        reseal(bad);
        expect_same_verdict(bad, 700, std::string(text) + ", bit " + std::to_string(bit), spec);
      }
    }
  }
}

TEST(CudaTopKForged, test_levels_out_of_range_are_refused) {
  const CodecSpec spec = spec_of("topk:k=600,values=bit2");
  const Bytes good = compressed(spec, DType::Float32, to_bytes(gaussian(3000)));
  const auto rest = std::span(good).subspan(sizeof(FrameHeader) + sizeof(TopKHead));
  const auto coded = coded_plane_bytes(Entropy::Huffman, rest, head_of(good).index_bytes);
  ASSERT_TRUE(coded.is_ok());
  const std::size_t at = sizeof(FrameHeader) + sizeof(TopKHead) + *coded;
  for (const std::uint16_t level : {0x7F81, 0x8000, 0xFFFF, 0x7F80}) {
    for (const std::size_t offset : {at, at + 2}) {
      Bytes bad = good;
      std::memcpy(bad.data() + offset, &level, sizeof(level));
      reseal(bad);
      expect_same_verdict(bad, 3000, "level " + std::to_string(level));
    }
  }
}

}  // namespace
}  // namespace geocomm::codec
