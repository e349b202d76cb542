#include "binding/tensors/tensor_codec.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "binding/device/device_tensor_codec.h"
#include "binding/device/host_room.h"
#include "binding/tensors/payload_room.h"
#include "binding/torch/comm_error.h"
#include "binding/torch/staging.h"
#include "codec/payload/payload.h"
#include "core/executor.h"
#include "core/fork.h"
#include "core/str.h"

namespace geocomm::binding {
namespace {

using core::DType;
using core::Status;
using core::StatusCode;

constexpr std::size_t kMaxThreads = 1024;

std::atomic<std::size_t>& default_threads() {
  static std::atomic<std::size_t> threads{1};
  return threads;
}

void require_cpu_or_cuda(const at::Tensor& tensor, const char* what) {
  if (tensor.device().is_cpu() || tensor.device().is_cuda()) return;
  throw_status(StatusCode::Unsupported, core::str("cannot ", what, " a tensor on ", tensor.device().str(),
                                                  "; move it to the CPU first"));
}

DType dtype_of(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) {
    throw_status(StatusCode::Unsupported, "cannot compress sparse tensors; use tensor.to_dense()");
  }
  const auto dtype = moved_dtype(tensor.scalar_type());
  if (dtype == DType::UInt8 && tensor.scalar_type() != at::kByte) {
    throw_status(StatusCode::Unsupported,
                 core::str("cannot compress tensors of dtype ", c10::toString(tensor.scalar_type())));
  }
  require_cpu_or_cuda(tensor, "compress");
  return dtype;
}

std::string shown(const at::Tensor& tensor) {
  return core::str(tensor.numel(), " of ", c10::toString(tensor.scalar_type()), " on ",
                   tensor.device().str());
}

void require_residual(const at::Tensor& residual, const at::Tensor& tensor) {
  const auto type = residual.scalar_type();
  if ((type == at::kFloat || type == at::kBFloat16) && residual.device() == tensor.device() &&
      is_flat_view(residual) && residual.numel() == tensor.numel()) {
    return;
  }
  throw_status(StatusCode::InvalidArgument,
               core::str("residual must be a contiguous float32 or bfloat16 tensor of ", tensor.numel(),
                         " elements on ", tensor.device().str(), ", got ", shown(residual)));
}

void require_bytes(const at::Tensor& tensor, const char* what) {
  if (tensor.scalar_type() == at::kByte && is_flat_view(tensor)) {
    require_cpu_or_cuda(tensor, "take");
    return;
  }
  throw_status(StatusCode::InvalidArgument,
               core::str(what, " must be a contiguous uint8 tensor, got ", shown(tensor)));
}

// The tensor itself on the CPU; else a copy in pinned memory, to which a device copies ten times as fast as
// to other. Waits for it.
at::Tensor on_host(const at::Tensor& tensor) {
  const auto host = to_host(tensor);
  if (!host.is_same(tensor)) {
    c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()).synchronize();
  }
  return host;
}

// A tensor of a CUDA device: by its kernels, else by way of the host. The bytes are the same.
at::Tensor compress_cuda(const codec::CodecSpec& spec, DType dtype, const at::Tensor& tensor,
                         const std::optional<at::Tensor>& residual, std::uint64_t seed, double decay,
                         std::size_t threads) {
  if (has_device_codec(spec, dtype, tensor.device())) {
    return compress_on_device(spec, dtype, flat(tensor), residual, seed, static_cast<float>(decay));
  }
  const auto host_residual = residual ? std::optional(residual->cpu()) : std::nullopt;
  const auto payload =
      compress_tensor(tensor.cpu(), spec.to_string(), host_residual, seed, decay, std::nullopt, threads);
  if (residual) residual->copy_(*host_residual);
  return payload.to(tensor.device());
}

// `add`, or whole: see decompress_tensor(), which has checked `out`.
at::Tensor decompress_cuda(const codec::PayloadInfo& info, const at::Tensor& payload,
                           const at::Tensor& host_payload, const at::Tensor& out, bool add,
                           std::size_t threads) {
  const auto target = is_flat_view(out) ? out : at::empty(out.sizes(), out.options());
  if (has_device_codec(info.spec, info.dtype, out.device())) {
    decompress_on_device(info, flat(payload), target, add);
  } else {
    const auto host = add ? target.cpu() : at::empty(target.sizes(), target.options().device(at::kCPU));
    decompress_tensor(host_payload, host, add, std::nullopt, threads);
    target.copy_(host);
  }
  if (!target.is_same(out)) out.copy_(target);
  return out;
}

}  // namespace

void set_codec_threads(std::size_t threads) {
  default_threads().store(std::max<std::size_t>(threads, 1));
}

// Kept for the next call that asks for as many; never joined at exit, when threads of the interpreter may
// still be in here.
std::shared_ptr<core::ThreadPool> pool_for(std::size_t threads) {
  struct Kept {
    std::mutex mutex;         // guards all below
    std::size_t helpers = 0;  // asked for
    std::shared_ptr<core::ThreadPool> pool;
  };
  static constinit core::PerProcess<Kept> per_process;
  if (threads == 0) threads = default_threads().load();
  if (threads > kMaxThreads) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("threads is ", threads, "; it must be from 1 to ", kMaxThreads));
  }
  if (threads == 1) return nullptr;
  Kept& kept = per_process.get();
  std::lock_guard lock(kept.mutex);
  if (std::exchange(kept.helpers, threads - 1) != threads - 1) {
    kept.pool = std::make_shared<core::ThreadPool>(threads - 1, "geocomm-tensor");
  }
  return kept.pool;
}

std::size_t tensor_bound(const at::Tensor& tensor, const std::string& codec) {
  return codec::payload_bound(value_or_throw(codec::CodecSpec::parse(codec)), dtype_of(tensor),
                              static_cast<std::uint64_t>(tensor.numel()));
}

at::Tensor compress_tensor(const at::Tensor& tensor, const std::string& codec,
                           const std::optional<at::Tensor>& residual, std::uint64_t seed, double decay,
                           const std::optional<at::Tensor>& out, std::size_t threads) {
  const auto spec = value_or_throw(codec::CodecSpec::parse(codec));
  const DType dtype = dtype_of(tensor);
  if (spec.needs_feedback() && !residual) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("codec ", spec.to_string(),
                           " drops most elements, and only error feedback makes up for that: pass residual="
                           "torch.zeros(",
                           tensor.numel(), "), and the same tensor in every later call for this tensor"));
  }
  codec::CompressOptions options;
  options.seed = seed;
  if (residual) {
    require_residual(*residual, tensor);
    options.feedback = {static_cast<std::byte*>(residual->data_ptr()), moved_dtype(residual->scalar_type()),
                        static_cast<std::size_t>(residual->numel()), static_cast<float>(decay)};
  }
  const auto bound = codec::payload_bound(spec, dtype, static_cast<std::uint64_t>(tensor.numel()));
  if (out) require_bytes(*out, "out");
  if (out && out->device() != tensor.device()) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("out has ", shown(*out), "; the tensor is on ", tensor.device().str()));
  }
  if (out && out->nbytes() < bound) {
    throw_status(StatusCode::OutputTooSmall,
                 core::str("out has ", out->nbytes(), " bytes, and the payload may take ", bound,
                           "; geocomm.compress_bound(tensor, codec) says how many it needs"));
  }
  if (!tensor.device().is_cpu()) {
    const auto made = compress_cuda(spec, dtype, tensor, residual, seed, decay, threads);
    if (!out) return made;
    const auto used = out->view({-1}).narrow(0, 0, made.numel());
    used.copy_(made);
    return used;
  }
  const auto source = flat(tensor);
  const auto compress_to = [&](std::span<std::byte> room) {
    return value_or_throw(
        codec::compress_payload(spec, dtype, bytes_of(source), room, options, pool_for(threads).get()));
  };
  if (out) {
    const auto used = static_cast<std::int64_t>(compress_to(bytes_of(*out)));
    return out->view({-1}).narrow(0, 0, used);
  }
  PayloadRoom room(bound);
  return room.take(compress_to(room.bytes()));
}

at::Tensor decompress_tensor(const at::Tensor& payload, const std::optional<at::Tensor>& out, bool add,
                             std::optional<std::uint64_t> max_elems, std::size_t threads) {
  require_bytes(payload, "payload");
  const auto host_payload = on_host(payload);  // the headers have to be read
  const auto info = value_or_throw(codec::inspect_payload(bytes_of(host_payload)));
  const auto type = scalar_type_of(info.dtype);
  if (max_elems && info.elements > *max_elems) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("the payload holds ", info.elements, " elements of ", core::to_string(info.dtype),
                           ", more than max_elems=", *max_elems));
  }
  if (add) {
    if (!out || out->scalar_type() != at::kFloat || out->device() != payload.device() ||
        !is_flat_view(*out) || static_cast<std::uint64_t>(out->numel()) != info.elements) {
      throw_status(StatusCode::InvalidArgument,
                   core::str("to add to, out must be a contiguous float32 tensor of ", info.elements,
                             " elements on ", payload.device().str(), ", got ", out ? shown(*out) : "none"));
    }
    if (!payload.device().is_cpu()) return decompress_cuda(info, payload, host_payload, *out, true, threads);
    const std::span sum(static_cast<float*>(out->data_ptr()), static_cast<std::size_t>(out->numel()));
    throw_if_error(codec::accumulate_payload(bytes_of(payload), sum, pool_for(threads).get()));
    return *out;
  }
  if (out && (out->scalar_type() != type || static_cast<std::uint64_t>(out->numel()) != info.elements ||
              out->device() != payload.device())) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("the payload holds ", info.elements, " elements of ", core::to_string(info.dtype),
                           " on ", payload.device().str(), "; out has ", shown(*out)));
  }
  const auto result = out ? *out
                          : at::empty({static_cast<std::int64_t>(info.elements)},
                                      at::TensorOptions().dtype(type).device(payload.device()));
  if (!payload.device().is_cpu()) return decompress_cuda(info, payload, host_payload, result, false, threads);
  auto target = is_flat_view(result) ? result : at::empty(result.sizes(), result.options());
  throw_if_error(codec::decompress_payload(bytes_of(payload), bytes_of(target), pool_for(threads).get()));
  if (!target.is_same(result)) result.copy_(target);
  return result;
}

}  // namespace geocomm::binding
