#include "binding/device/device_tensor_codec.h"

#include "binding/device/cuda/kernel_images.h"
#include "binding/torch/comm_error.h"
#include "binding/torch/staging.h"
#include "codec/cuda/cuda_codec.h"
#include "core/str.h"

namespace geocomm::binding {

namespace cuda = codec::cuda;

namespace {

struct DeviceCall {
  explicit DeviceCall(const at::Tensor& tensor)
      : guard(tensor.device()),
        stream(static_cast<cuda::Stream>(
            c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()).native_handle())),
        bytes(at::TensorOptions().dtype(at::kByte).device(tensor.device())),
        word(at::zeros({1}, bytes.dtype(at::kLong))) {}

  at::Tensor room(std::size_t size) const { return at::empty({static_cast<std::int64_t>(size)}, bytes); }
  std::uint64_t* word_dev() const { return static_cast<std::uint64_t*>(word.data_ptr()); }
  // Waits for the device.
  std::uint64_t word_value() const { return static_cast<std::uint64_t>(word.item<std::int64_t>()); }

  const c10::DeviceGuard guard;
  const cuda::Stream stream;
  const at::TensorOptions bytes;
  const at::Tensor word;
};

}  // namespace

bool has_device_codec(const codec::CodecSpec& spec, core::DType dtype, const at::Device& device) {
  if (!cuda::is_supported(spec, dtype)) return false;
  const c10::DeviceGuard guard(device);
  return has_kernels(core::str("payload ", spec.to_string(), ' ', core::to_string(dtype)), [&] {
    constexpr std::uint64_t kElements = 4096;
    auto* const nowhere = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20);
    auto* const word = reinterpret_cast<std::uint64_t*>(nowhere);
    const std::span workspace(nowhere, cuda::workspace_bytes(spec, dtype, kElements, cuda::Framing::Payload));
    const std::span payload(nowhere, cuda::encoded_bound(spec, dtype, kElements, cuda::Framing::Payload));
    throw_if_error(
        cuda::compress_payload(spec, dtype, nowhere, kElements, payload, {}, workspace, word, nullptr));
    for (const codec::Sink sink : {codec::sink_of(dtype), codec::Sink::AddToFloat32}) {
      throw_if_error(cuda::decompress_payload(spec, dtype, payload, nowhere, kElements, sink, {}, workspace,
                                              word, nullptr));
    }
  });
}

at::Tensor compress_on_device(const codec::CodecSpec& spec, core::DType dtype, const at::Tensor& source,
                              const std::optional<at::Tensor>& residual, std::uint64_t seed, float decay) {
  const DeviceCall call(source);
  const auto elements = static_cast<std::uint64_t>(source.numel());
  const auto workspace = call.room(cuda::workspace_bytes(spec, dtype, elements, cuda::Framing::Payload));
  const auto payload = call.room(cuda::encoded_bound(spec, dtype, elements, cuda::Framing::Payload));
  cuda::EncodeOptions options;
  options.seed = seed;
  if (residual) {
    options.feedback = {static_cast<std::byte*>(residual->data_ptr()), moved_dtype(residual->scalar_type()),
                        static_cast<std::size_t>(elements), decay};
  }
  throw_if_error(cuda::compress_payload(spec, dtype, static_cast<const std::byte*>(source.data_ptr()),
                                        elements, bytes_of(payload), options, bytes_of(workspace),
                                        call.word_dev(), call.stream));
  return payload.narrow(0, 0, static_cast<std::int64_t>(call.word_value())).clone();
}

void decompress_on_device(const codec::PayloadInfo& info, const at::Tensor& payload, const at::Tensor& target,
                          bool add) {
  const DeviceCall call(payload);
  const auto workspace =
      call.room(cuda::workspace_bytes(info.spec, info.dtype, info.elements, cuda::Framing::Payload));
  throw_if_error(cuda::decompress_payload(info.spec, info.dtype, bytes_of(payload),
                                          static_cast<std::byte*>(target.data_ptr()), info.elements,
                                          add ? codec::Sink::AddToFloat32 : codec::sink_of(info.dtype), {},
                                          bytes_of(workspace), call.word_dev(), call.stream));
  throw_if_error(cuda::to_status(call.word_value()));
}

}  // namespace geocomm::binding
