// The kernels of codec/cuda on CUDA tensors, for geocomm.compress and geocomm.decompress. Both wait for the
// device: sizes, and whether received bytes are sound, are only known there.
#pragma once

#include <cstdint>
#include <optional>

#include "binding/torch/torch_prelude.h"
#include "codec/payload/payload.h"
#include "codec/spec/codec_spec.h"
#include "core/dtype.h"

namespace geocomm::binding {

// Whether this build has kernels for it that the device can run.
bool has_device_codec(const codec::CodecSpec& spec, core::DType dtype, const at::Device& device);

// `source`: flat; `residual`: contiguous float32 or bfloat16 on the same device, updated. A uint8 tensor
// there.
at::Tensor compress_on_device(const codec::CodecSpec& spec, core::DType dtype, const at::Tensor& source,
                              const std::optional<at::Tensor>& residual, std::uint64_t seed, float decay);

// `payload`: flat; `info` is what its headers say. `target`: flat, on the same device, of the payload's
// dtype, or (`add`) float32. On error it is as it was.
void decompress_on_device(const codec::PayloadInfo& info, const at::Tensor& payload, const at::Tensor& target,
                          bool add);

}  // namespace geocomm::binding
