#include "binding/tensors/tensor_delta.h"

#include <string>

#include "binding/tensors/payload_room.h"
#include "binding/tensors/tensor_codec.h"
#include "binding/torch/comm_error.h"
#include "binding/torch/staging.h"
#include "codec/delta/delta.h"
#include "core/str.h"

namespace geocomm::binding {
namespace {

using core::DType;
using core::StatusCode;

std::string described(const at::Tensor& tensor) {
  return core::str(tensor.numel(), " of ", c10::toString(tensor.scalar_type()), " on ",
                   tensor.device().str());
}

void require_on_cpu(const at::Tensor& tensor) {
  if (tensor.device().is_cpu() && tensor.layout() == at::kStrided) return;
  throw_status(StatusCode::Unsupported,
               core::str("deltas are of dense tensors on the CPU, got ", described(tensor),
                         "; use tensor.cpu() or tensor.to_dense()"));
}

// Types of one byte that nobody reduces, float8 for one, are bytes here.
DType dtype_of_delta(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  const DType dtype = moved_dtype(type);
  if (dtype != DType::UInt8 || tensor.element_size() == 1) return dtype;
  throw_status(StatusCode::Unsupported, core::str("there are no deltas of dtype ", c10::toString(type),
                                                  "; use tensor.view(torch.uint8)"));
}

}  // namespace

at::Tensor make_tensor_delta(const at::Tensor& tensor, const at::Tensor& base, std::size_t threads) {
  require_on_cpu(tensor);
  require_on_cpu(base);
  if (tensor.scalar_type() != base.scalar_type() || tensor.numel() != base.numel()) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("a delta is of two tensors of one dtype and size; the tensor has ",
                           described(tensor), ", the base ", described(base)));
  }
  const DType dtype = dtype_of_delta(tensor);
  const auto values = flat(tensor);
  const auto before = flat(base);
  PayloadRoom room(codec::delta_bound(dtype, static_cast<std::uint64_t>(values.numel())));
  return room.take(value_or_throw(
      codec::make_delta(dtype, bytes_of(before), bytes_of(values), room.bytes(), pool_for(threads).get())));
}

void apply_tensor_delta(const at::Tensor& delta, const at::Tensor& tensor, std::size_t threads) {
  require_on_cpu(delta);
  require_on_cpu(tensor);
  if (delta.scalar_type() != at::kByte) {
    throw_status(StatusCode::InvalidArgument, core::str("a delta is a uint8 tensor, got ", described(delta)));
  }
  const auto payload = flat(delta);
  const auto info = value_or_throw(codec::inspect_delta(bytes_of(payload)));
  if (info.dtype != dtype_of_delta(tensor) || info.elements != static_cast<std::uint64_t>(tensor.numel())) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("the delta is of ", info.elements, " elements of ", core::to_string(info.dtype),
                           "; the tensor has ", described(tensor)));
  }
  const auto target = flat(tensor);
  throw_if_error(codec::apply_delta(bytes_of(payload), bytes_of(target), pool_for(threads).get()));
  if (!is_flat_view(tensor)) tensor.copy_(target.view(tensor.sizes()));
}

}  // namespace geocomm::binding
