#include "binding/tensor_codec.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include "binding/comm_error.h"
#include "binding/staging.h"
#include "codec/payload.h"
#include "core/executor.h"
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

// Helpers of the calling thread, or null where it works alone. Kept for the next call that asks for as many;
// never joined at exit, when threads of the interpreter may still be in here.
std::shared_ptr<core::ThreadPool> pool_for(std::size_t threads) {
  static auto* mutex = new std::mutex();
  static auto* kept = new std::shared_ptr<core::ThreadPool>();
  if (threads == 0) threads = default_threads().load();
  if (threads > kMaxThreads) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("threads is ", threads, "; it must be from 1 to ", kMaxThreads));
  }
  if (threads == 1) return nullptr;
  std::lock_guard lock(*mutex);
  if (*kept == nullptr || (*kept)->thread_count() != threads - 1) {
    *kept = std::make_shared<core::ThreadPool>(threads - 1, "geocomm-tensor");
  }
  return *kept;
}

// CUDA tensors: this is the place where they will be told apart.
void require_cpu(const at::Tensor& tensor, const char* what) {
  if (tensor.device().is_cpu()) return;
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
  require_cpu(tensor, "compress");
  return dtype;
}

at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::Float32:
      return at::kFloat;
    case DType::Float64:
      return at::kDouble;
    case DType::Float16:
      return at::kHalf;
    case DType::BFloat16:
      return at::kBFloat16;
    case DType::Int8:
      return at::kChar;
    case DType::UInt8:
      return at::kByte;
    case DType::Int16:
      return at::kShort;
    case DType::Int32:
      return at::kInt;
    case DType::Int64:
      return at::kLong;
    case DType::Bool:
      return at::kBool;
  }
  return at::kByte;
}

std::string shown(const at::Tensor& tensor) {
  return core::str(tensor.numel(), " of ", c10::toString(tensor.scalar_type()), " on ",
                   tensor.device().str());
}

codec::ErrorFeedback feedback_of(const at::Tensor& residual, std::int64_t elements, double decay) {
  const auto type = residual.scalar_type();
  if ((type != at::kFloat && type != at::kBFloat16) || !residual.device().is_cpu() ||
      !is_flat_view(residual) || residual.numel() != elements) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("residual must be a contiguous float32 or bfloat16 CPU tensor of ", elements,
                           " elements, got ", shown(residual)));
  }
  return {static_cast<std::byte*>(residual.data_ptr()), moved_dtype(type), static_cast<std::size_t>(elements),
          static_cast<float>(decay)};
}

float* threshold_in(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kFloat || !tensor.device().is_cpu() || !is_flat_view(tensor) ||
      tensor.numel() != 1) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("threshold must be a float32 CPU tensor of one element, got ", shown(tensor)));
  }
  return static_cast<float*>(tensor.data_ptr());
}

void require_bytes(const at::Tensor& tensor, const char* what) {
  if (tensor.scalar_type() == at::kByte && tensor.device().is_cpu() && is_flat_view(tensor)) return;
  throw_status(StatusCode::InvalidArgument,
               core::str(what, " must be a contiguous uint8 CPU tensor, got ", shown(tensor)));
}

}  // namespace

void set_codec_threads(std::size_t threads) {
  default_threads().store(std::max<std::size_t>(threads, 1));
}

std::size_t tensor_bound(const at::Tensor& tensor, const std::string& codec) {
  return codec::payload_bound(value_or_throw(codec::CodecSpec::parse(codec)), dtype_of(tensor),
                              static_cast<std::uint64_t>(tensor.numel()));
}

at::Tensor compress_tensor(const at::Tensor& tensor, const std::string& codec,
                           const std::optional<at::Tensor>& residual, std::uint64_t seed, double decay,
                           const std::optional<at::Tensor>& threshold, const std::optional<at::Tensor>& out,
                           std::size_t threads) {
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
  if (residual) options.feedback = feedback_of(*residual, tensor.numel(), decay);
  if (threshold) options.threshold = threshold_in(*threshold);
  const auto source = flat(tensor);
  const auto bound = codec::payload_bound(spec, dtype, static_cast<std::uint64_t>(source.numel()));
  if (out) require_bytes(*out, "out");
  if (out && out->nbytes() < bound) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("out has ", out->nbytes(), " bytes; the payload may take ", bound));
  }
  auto payload = out ? out->view({-1}) : at::empty({static_cast<std::int64_t>(bound)}, at::kByte);
  const auto size = static_cast<std::int64_t>(value_or_throw(codec::compress_payload(
      spec, dtype, bytes_of(source), bytes_of(payload), options, pool_for(threads).get())));
  const auto used = payload.narrow(0, 0, size);
  return out ? used : used.clone();
}

at::Tensor decompress_tensor(const at::Tensor& payload, const std::optional<at::Tensor>& out, bool add,
                             std::size_t threads) {
  require_bytes(payload, "payload");
  const auto info = value_or_throw(codec::inspect_payload(bytes_of(payload)));
  const auto type = scalar_type_of(info.dtype);
  const auto pool = pool_for(threads);
  if (add) {
    if (!out || out->scalar_type() != at::kFloat || !out->device().is_cpu() || !is_flat_view(*out) ||
        static_cast<std::uint64_t>(out->numel()) != info.elements) {
      throw_status(StatusCode::InvalidArgument,
                   core::str("to add to, out must be a contiguous float32 CPU tensor of ", info.elements,
                             " elements, got ", out ? shown(*out) : "none"));
    }
    const std::span sum(static_cast<float*>(out->data_ptr()), static_cast<std::size_t>(out->numel()));
    throw_if_error(codec::accumulate_payload(bytes_of(payload), sum, pool.get()));
    return *out;
  }
  if (!out) {
    auto result = at::empty({static_cast<std::int64_t>(info.elements)}, type);
    throw_if_error(codec::decompress_payload(bytes_of(payload), bytes_of(result), pool.get()));
    return result;
  }
  if (out->scalar_type() != type || static_cast<std::uint64_t>(out->numel()) != info.elements ||
      !out->device().is_cpu()) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("the payload holds ", info.elements, " elements of ", core::to_string(info.dtype),
                           "; out has ", shown(*out)));
  }
  auto target = is_flat_view(*out) ? *out : at::empty(out->sizes(), out->options());
  throw_if_error(codec::decompress_payload(bytes_of(payload), bytes_of(target), pool.get()));
  if (!target.is_same(*out)) out->copy_(target);
  return *out;
}

}  // namespace geocomm::binding
