// The codecs on torch tensors: what geocomm.compress and geocomm.decompress call. They throw geocomm's
// exceptions, and are called without the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "binding/torch/torch_prelude.h"
#include "core/executor.h"

namespace geocomm::binding {

// Threads that a call uses if it does not say (0), the calling one included. At first 1.
void set_codec_threads(std::size_t threads);

// The helpers of a calling thread that may use `threads` (0: as set_codec_threads() said), or null where it
// works alone. Throws for too many.
std::shared_ptr<core::ThreadPool> pool_for(std::size_t threads);

// Room that compress_tensor() needs in `out`, in bytes.
std::size_t tensor_bound(const at::Tensor& tensor, const std::string& codec);

// All tensors of a call are on one device, the CPU or a CUDA device.
//
// A payload (payload.h): a new uint8 tensor, or the used part of `out` (contiguous uint8, of at least
// tensor_bound()). residual: contiguous float32 or bfloat16, of the tensor's size, updated in place.
// At most `threads` threads; the bytes do not depend on them.
at::Tensor compress_tensor(const at::Tensor& tensor, const std::string& codec,
                           const std::optional<at::Tensor>& residual, std::uint64_t seed, double decay,
                           const std::optional<at::Tensor>& out, std::size_t threads);

// The elements of a payload: as a new tensor of one dimension, or in `out` (same dtype and number of
// elements, any shape). add: they are added to `out`, which is float32, contiguous, and there; on error it
// may hold part of the sum. max_elems: a payload of more is refused before anything is allocated.
at::Tensor decompress_tensor(const at::Tensor& payload, const std::optional<at::Tensor>& out, bool add,
                             std::optional<std::uint64_t> max_elems, std::size_t threads);

}  // namespace geocomm::binding
