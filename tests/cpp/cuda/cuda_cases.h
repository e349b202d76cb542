// The CUDA codecs as functions from bytes to bytes, on the stand-in for a device.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "codec/cuda/cuda_codec.h"
#include "codec/payload/payload.h"
#include "codec_cases.h"

namespace geocomm::codec {

inline constexpr std::string_view kCudaSpecs[] = {"none",
                                                  "fp16",
                                                  "bf16",
                                                  "int8",
                                                  "int8:block=64",
                                                  "int8:block=128",
                                                  "int8:block=512",
                                                  "int8:round=stochastic",
                                                  "int4",
                                                  "int4:block=64,round=stochastic",
                                                  "int4:block=4096",
                                                  "bit2",
                                                  "bit2:block=64",
                                                  "bit2:block=1024",
                                                  "bit1",
                                                  "bit1:block=64",
                                                  "bit1:block=2048",
                                                  "int8+huffman",
                                                  "int8:block=64,round=stochastic+huffman",
                                                  "int4+huffman",
                                                  "bit2:block=512+huffman",
                                                  "bit1:block=64+huffman",
                                                  "deadzone",
                                                  "deadzone:block=64,step=1.2",
                                                  "deadzone:block=1024,step=0.3+none",
                                                  "bitplanes",
                                                  "bitplanes:block=64,step=0.3",
                                                  "bitplanes:block=1024,step=0.1+none",
                                                  "tiny",
                                                  "topk",
                                                  "loco",
                                                  "loco:k=700",
                                                  "lossless",
                                                  "lossless+none",
                                                  "fp16+huffman",
                                                  "bf16+huffman"};

// Memory as the device has it: aligned to 256, and watched to its last byte by AddressSanitizer.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256 + 256))),
        data_(memory_.get()),
        bytes_(bytes) {
    std::memset(data_, 0x5A, bytes);
  }
  // `shift` bytes off the alignment.
  explicit DeviceBytes(std::span<const std::byte> content, std::size_t shift = 0)
      : DeviceBytes(content.size() + shift) {
    data_ += shift;
    bytes_ -= shift;
    if (!content.empty()) std::memcpy(data_, content.data(), content.size());
  }
  std::byte* data() const { return data_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }
  Bytes bytes() const { return {data_, data_ + bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::byte* data_;
  std::size_t bytes_;
};

struct CudaCase {
  CodecSpec spec;
  DType dtype = DType::Float32;
  Bytes src;
  std::size_t shift = 0;  // of the source
  cuda::EncodeOptions options = {};
  Bytes residual = {};
  std::size_t elements() const { return src.size() / core::size_of(dtype); }
};

inline CudaCase single_frame(std::string_view spec, std::span<const float> values,
                             DType dtype = DType::Float32) {
  CudaCase test{spec_of(spec), dtype, to_bytes(values, dtype)};
  test.options.framing = cuda::Framing::SingleFrame;
  return test;
}

struct Encoded {
  Bytes payload;
  Bytes residual;
};

inline Encoded encode_on_device(const CudaCase& test) {
  const std::size_t elements = test.elements();
  const DeviceBytes src(test.src, test.shift);
  const DeviceBytes residual(test.residual);
  const DeviceBytes dst(cuda::encoded_bound(test.spec, test.dtype, elements, test.options.framing));
  const DeviceBytes workspace(cuda::workspace_bytes(test.spec, test.dtype, elements, test.options.framing));
  Encoded encoded;
  cuda::EncodeOptions options = test.options;
  if (!test.residual.empty()) options.feedback.residual = residual.data();
  options.feedback.elements = elements;
  std::uint64_t bytes = ~std::uint64_t{0};
  const auto status = cuda::compress_payload(test.spec, test.dtype, src.data(), elements, dst.span(), options,
                                             workspace.span(), &bytes, nullptr);
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  EXPECT_LE(bytes, dst.span().size());
  const Bytes all = dst.bytes();
  encoded.payload.assign(
      all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(bytes, all.size())));
  encoded.residual = residual.bytes();
  return encoded;
}

inline Encoded encode_on_host(const CudaCase& test) {
  Encoded encoded;
  encoded.residual = test.residual;
  CompressOptions options;
  options.seed = test.options.seed;
  options.first_element = test.options.first_element;
  if (!test.residual.empty()) {
    options.feedback = test.options.feedback;
    options.feedback.residual = encoded.residual.data();
    options.feedback.elements = test.elements();
  }
  encoded.payload.resize(cuda::encoded_bound(test.spec, test.dtype, test.elements(), test.options.framing));
  const auto size = test.options.framing == cuda::Framing::Payload
                        ? compress_payload(test.spec, test.dtype, test.src, encoded.payload, options)
                        : compress(test.spec, test.dtype, test.src, encoded.payload, options);
  EXPECT_TRUE(size.is_ok()) << size.status().to_string();
  encoded.payload.resize(size.is_ok() ? *size : 0);
  return encoded;
}

struct Decoded {
  std::uint64_t verdict = 0;
  Bytes elements;
};

// Onto `old`, which has the sink's size.
inline Decoded decode_on_device(const CodecSpec& spec, DType dtype, std::span<const std::byte> payload,
                                const Bytes& old, std::uint64_t elements, Sink sink,
                                const cuda::DecodeOptions& options = {}, std::size_t shift = 0) {
  const DeviceBytes src(payload, shift);
  const DeviceBytes dst(old);
  const DeviceBytes workspace(cuda::workspace_bytes(spec, dtype, elements, options.framing));
  Decoded decoded;
  decoded.verdict = ~std::uint64_t{0};
  const auto status = cuda::decompress_payload(spec, dtype, src.span(), dst.data(), elements, sink, options,
                                               workspace.span(), &decoded.verdict, nullptr);
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  decoded.elements = dst.bytes();
  return decoded;
}

// Of all bytes, both ways, through payloads.
inline void expect_same_payload(const CudaCase& test) {
  const Encoded device = encode_on_device(test);
  const Encoded host = encode_on_host(test);
  ASSERT_EQ(device.payload.size(), host.payload.size());
  ASSERT_TRUE(device.payload == host.payload);
  ASSERT_TRUE(device.residual == host.residual);
  Bytes own(test.src.size());
  ASSERT_TRUE(decompress_payload(host.payload, own).is_ok());
  const Decoded decoded =
      decode_on_device(test.spec, test.dtype, host.payload, Bytes(own.size(), std::byte{0x11}),
                       test.elements(), sink_of(test.dtype));
  ASSERT_EQ(decoded.verdict, 0u) << cuda::to_status(decoded.verdict).to_string();
  ASSERT_TRUE(decoded.elements == own);
}

}  // namespace geocomm::codec
