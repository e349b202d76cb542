// What is loaded before is all that is started later, by each codec, and loading runs nothing.
#include <algorithm>
#include <string>

#include "codec/cuda/kernel_loading.h"
#include "codec/cuda/launch.h"
#include "cuda_cases.h"

namespace geocomm::codec {
namespace {

using core::DType;
using core::Status;

// Both directions of one payload; where nothing is run, memory that nobody may look at.
class PayloadRun {
 public:
  PayloadRun(const CodecSpec& spec, DType dtype, std::size_t elements, cuda::Framing framing)
      : spec_(spec), dtype_(dtype), elements_(elements), framing_(framing) {}

  Status load() const {
    const cuda::LoadsOnly loads;
    auto* const nowhere = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20);
    return run(nowhere, {nowhere, bound()}, {nowhere, workspace()}, nowhere,
               reinterpret_cast<std::uint64_t*>(nowhere));
  }
  Status start() const {
    const Bytes input = random_elements();
    const DeviceBytes source{std::span<const std::byte>(input)};
    const DeviceBytes payload(bound());
    const DeviceBytes space(workspace());
    const DeviceBytes target(elements_ * sizeof(float));
    std::uint64_t word = 0;
    return run(source.data(), payload.span(), space.span(), target.data(), &word);
  }

 private:
  std::size_t bound() const { return cuda::encoded_bound(spec_, dtype_, elements_, framing_); }
  std::size_t workspace() const { return cuda::workspace_bytes(spec_, dtype_, elements_, framing_); }
  Bytes random_elements() const {
    Bytes bytes(elements_ * core::size_of(dtype_));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 97 % 251);
    return bytes;
  }
  Status run(const std::byte* source, std::span<std::byte> payload, std::span<std::byte> space,
             std::byte* target, std::uint64_t* word) const {
    cuda::EncodeOptions encoding;
    encoding.framing = framing_;
    GEOCOMM_RETURN_IF_ERROR(
        cuda::compress_payload(spec_, dtype_, source, elements_, payload, encoding, space, word, nullptr));
    cuda::DecodeOptions decoding;
    decoding.framing = framing_;
    decoding.may_be_longer = true;
    for (const Sink sink : {sink_of(dtype_), Sink::Float32, Sink::AddToFloat32}) {
      GEOCOMM_RETURN_IF_ERROR(cuda::decompress_payload(spec_, dtype_, payload, target, elements_, sink,
                                                       decoding, space, word, nullptr));
    }
    return Status::ok();
  }

  const CodecSpec spec_;
  const DType dtype_;
  const std::size_t elements_;
  const cuda::Framing framing_;
};

TEST(KernelLoading, test_all_that_is_started_was_loaded_and_loading_runs_nothing) {
  auto& seen = cuda::kernels_seen();
  for (const std::string_view text : kCudaSpecs) {
    for (const DType dtype : {DType::Float32, DType::BFloat16}) {
      for (const cuda::Framing framing : {cuda::Framing::Payload, cuda::Framing::SingleFrame}) {
        const PayloadRun run(*CodecSpec::parse(text), dtype, 5000, framing);
        seen.loaded.clear();
        seen.started.clear();
        const Status loaded = run.load();  // would end the process if a kernel looked at its memory
        ASSERT_TRUE(loaded.is_ok()) << text << ": " << loaded.to_string();
        EXPECT_TRUE(seen.started.empty());
        EXPECT_FALSE(seen.loaded.empty());
        const Status started = run.start();
        ASSERT_TRUE(started.is_ok()) << text << ": " << started.to_string();
        EXPECT_FALSE(seen.started.empty());
        EXPECT_TRUE(std::ranges::includes(seen.loaded, seen.started)) << text;
      }
    }
  }
}

TEST(KernelLoading, test_a_device_without_images_says_so_before_anything_is_started) {
  auto& seen = cuda::kernels_seen();
  seen.has_images = false;
  const PayloadRun run(*CodecSpec::parse("int8"), DType::Float32, 5000, cuda::Framing::SingleFrame);
  EXPECT_EQ(run.load().code(), core::StatusCode::Driver);
  seen.has_images = true;
  EXPECT_TRUE(run.load().is_ok());
}

}  // namespace
}  // namespace geocomm::codec
