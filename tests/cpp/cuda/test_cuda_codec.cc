// Kernels give the CPU's bytes, both ways.
#include "cuda_cases.h"
#include "simt.h"

namespace geocomm::codec {
namespace {

constexpr std::uint64_t kSeed = 0x123456789ABCDEF0;

class CudaCodec : public testing::TestWithParam<std::string_view> {
 protected:
  CodecSpec spec_ = spec_of(GetParam());

  void expect_same(const CudaCase& test, const std::string& what) {
    const Encoded device = encode_on_device(test);
    const Encoded host = encode_on_host(test);
    ASSERT_EQ(device.payload.size(), host.payload.size()) << what;
    for (std::size_t i = 0; i < host.payload.size(); ++i) {
      ASSERT_EQ(device.payload[i], host.payload[i])
          << what << ", byte " << i << " of " << host.payload.size();
    }
    ASSERT_EQ(device.residual, host.residual) << what;
    expect_same_elements(test, host.payload, what);
  }

  void expect_same_elements(const CudaCase& test, const Bytes& payload, const std::string& what) {
    const std::size_t elements = test.elements();
    Bytes own(test.src.size());
    ASSERT_TRUE(decompress_payload(payload, own).is_ok());
    const cuda::DecodeOptions options{test.options.framing, test.options.checksums};
    for (const std::size_t shift : {std::size_t{0}, std::size_t{7}}) {
      const Decoded device = decode_on_device(spec_, test.dtype, payload, Bytes(own.size(), std::byte{0x11}),
                                              elements, sink_of(test.dtype), options, shift);
      ASSERT_EQ(device.verdict, 0u) << what << ' ' << cuda::to_status(device.verdict).to_string();
      ASSERT_EQ(device.elements, own) << what;
    }
    if (!core::is_compressible(test.dtype)) return;
    std::vector<float> sum = gaussian(elements, 3.0f, 9);
    const Bytes old = to_bytes(sum);
    const Decoded added =
        decode_on_device(spec_, test.dtype, payload, old, elements, Sink::AddToFloat32, options);
    ASSERT_EQ(added.verdict, 0u) << what;
    ASSERT_TRUE(accumulate_payload(payload, sum).is_ok());
    const auto got = to_floats(added.elements);
    for (std::size_t i = 0; i < elements; ++i) {
      if (std::isnan(sum[i])) {
        ASSERT_TRUE(std::isnan(got[i])) << what << ' ' << i;
      } else {
        ASSERT_EQ(got[i], sum[i]) << what << ' ' << i;
      }
    }
  }
};

cuda::EncodeOptions single_frame(std::uint64_t first_element = 0) {
  cuda::EncodeOptions options;
  options.framing = cuda::Framing::SingleFrame;
  options.seed = kSeed;
  options.first_element = first_element;
  return options;
}

TEST_P(CudaCodec, test_every_length_gives_the_bytes_of_the_cpu) {
  for (const DType dtype : kFloatTypes) {
    for (const std::size_t length :
         {0u, 1u, 3u, 5u, 63u, 64u, 65u, 127u, 129u, 255u, 257u, 511u, 700u, 4097u}) {
      CudaCase test{spec_, dtype, to_bytes(gaussian(length), dtype)};
      test.options = single_frame(8 * length);
      expect_same(test, "length " + std::to_string(length) + " of " + std::string(core::to_string(dtype)));
    }
  }
}

TEST_P(CudaCodec, test_sources_at_any_element_and_counters_at_any_offset) {
  for (const DType dtype : kFloatTypes) {
    for (const std::uint64_t first : {1u, 6u, 12u}) {
      CudaCase test{spec_, dtype, to_bytes(gaussian(900), dtype)};
      test.shift = first * core::size_of(dtype);
      test.options = single_frame((std::uint64_t{1} << 35) - 400 + first);
      expect_same(test, "shifted by " + std::to_string(first));
    }
  }
}

TEST_P(CudaCodec, test_residuals_are_those_of_the_cpu) {
  for (const DType dtype : kFloatTypes) {
    for (const DType kept : {DType::Float32, DType::BFloat16}) {
      for (const std::size_t length : {37u, 1500u}) {
        CudaCase test{spec_, dtype, to_bytes(gaussian(length), dtype)};
        test.residual = to_bytes(gaussian(length, 0.4f, 5), kept);
        test.options = single_frame();
        test.options.feedback.dtype = kept;
        test.options.feedback.decay = 0.9f;
        expect_same(test, std::string(core::to_string(dtype)) + " with a residual of " +
                              std::string(core::to_string(kept)));
      }
    }
  }
}

// A block that is not finite goes raw, and moves what follows; so does a value that a cast cannot carry.
TEST_P(CudaCodec, test_raw_blocks_and_extremes_give_the_bytes_of_the_cpu) {
  for (const DType dtype : kFloatTypes) {
    for (const bool with_residual : {false, true}) {
      auto values = gaussian(3000);
      for (std::size_t i = 900; i < 1300; ++i) values[i] = 0.0f;
      for (std::size_t i = 1300; i < 1400; ++i) values[i] *= 1e-39f;
      for (std::size_t i = 1400; i < 1800; ++i) values[i] *= dtype == DType::Float16 ? 1e4f : 1e37f;
      values[5] = kInf;
      values[600] = -kInf;
      values[2999] = kNan;
      values[1801] = -0.0f;
      CudaCase test{spec_, dtype, to_bytes(values, dtype)};
      if (dtype == DType::BFloat16) test.src[2 * 2999] = std::byte{0x81};  // a NaN that is not quiet
      test.options = single_frame();
      if (with_residual) test.residual = to_bytes(gaussian(3000, 0.5f, 3));
      expect_same(test, std::string(core::to_string(dtype)) + (with_residual ? " with a residual" : ""));
    }
  }
}

TEST_P(CudaCodec, test_order_of_threads_does_not_matter) {
  CudaCase test{spec_, DType::Float32, to_bytes(gaussian(5000))};
  test.options = single_frame();
  test.residual = to_bytes(gaussian(5000, 0.4f, 5));
  simt::set_order(simt::Order::Backward);
  expect_same(test, "backward");
  simt::set_order(simt::Order::Forward);
}

std::string name_of(const testing::TestParamInfo<std::string_view>& info) {
  return case_name(info);
}
INSTANTIATE_TEST_SUITE_P(Specs, CudaCodec, testing::ValuesIn(kCudaSpecs), name_of);

}  // namespace
}  // namespace geocomm::codec
