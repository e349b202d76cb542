// TopK with Select::Global on the device: the threshold is found, carried and corrected as on the CPU.
#include "cuda_cases.h"
#include "simt.h"
#include "top_k_cases.h"

namespace geocomm::codec {
namespace {

// One call on both; the next one's threshold.
float expect_same_call(const CudaCase& test, const std::string& what) {
  const Encoded device = encode_on_device(test);
  const Encoded host = encode_on_host(test);
  EXPECT_TRUE(device.payload == host.payload)
      << what << ": " << device.payload.size() << " bytes, " << host.payload.size() << " expected";
  EXPECT_TRUE(device.residual == host.residual) << what;
  EXPECT_EQ(std::bit_cast<std::uint32_t>(device.threshold), std::bit_cast<std::uint32_t>(host.threshold))
      << what;
  return host.threshold;
}

TEST(CudaThreshold, test_every_size_of_sample_gives_the_bytes_of_the_cpu) {
  for (const std::size_t elements : {0u, 1u, 7u, 4096u, 4097u, 9000u, 70001u}) {
    CudaCase test = single_frame("topk:select=global,k=41", gaussian(elements));
    expect_same_call(test, std::to_string(elements) + " elements");
    test.threshold = 0.0f;
    expect_same_call(test, std::to_string(elements) + " elements, carried on");
  }
}

TEST(CudaThreshold, test_all_data_gives_the_bytes_of_the_cpu) {
  for (const Data data : kAllData) {
    for (const DType dtype : {DType::Float32, DType::BFloat16}) {
      const auto values = make_data(data, 9000);
      CudaCase test = single_frame("topk:select=global,k=100,values=bit2", values, dtype);
      test.threshold = 0.0f;
      test.residual = to_bytes(make_data(data, 9000, 2));
      expect_same_call(test, "data " + std::to_string(static_cast<int>(data)));
    }
  }
}

TEST(CudaThreshold, test_what_is_carried_is_corrected_as_on_the_cpu) {
  CudaCase test = single_frame("topk:select=global,k=20,values=fp32", gaussian(9000));
  test.residual = to_bytes(std::vector<float>(9000));
  test.threshold = 0.0f;
  for (int call = 0; call < 4; ++call) {
    test.threshold = expect_same_call(test, "call " + std::to_string(call));
    test.src = to_bytes(gaussian(9000, 1.0f + static_cast<float>(call), 5));
  }
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const float carried : {kNan, kInf, -1.0f, -0.0f, 1e-45f, 1e-6f, 0.5f, 2.0f, 3.9f, 1e6f, kLargest}) {
    test.threshold = carried;
    expect_same_call(test, "carried " + std::to_string(carried));
  }
}

// One threshold for all frames; most chunks of the second give nothing.
TEST(CudaThreshold, test_payloads_of_several_frames) {
  constexpr std::size_t kFrame = kPayloadFrameBytes / sizeof(std::uint16_t);
  auto values = gaussian(kFrame + 40000);
  for (std::size_t i = kFrame + 100; i < values.size(); ++i) values[i] *= 1e-3f;
  values.back() = 9.0f;
  CudaCase test{spec_of("topk:select=global,k=8"), DType::Float16, to_bytes(values, DType::Float16)};
  test.threshold = 0.0f;
  test.threshold = expect_same_call(test, "payload");
  simt::set_order(simt::Order::Backward);
  expect_same_call(test, "again");
  simt::set_order(simt::Order::Forward);
}

}  // namespace
}  // namespace geocomm::codec
