#include "binding/tensors/tensor_scales.h"

#include <span>

#include "binding/torch/comm_error.h"
#include "binding/torch/staging.h"
#include "collective/outer/element_scales.h"
#include "core/str.h"

namespace geocomm::binding {
namespace {

std::span<float> row_of(const at::Tensor& tensor, const char* name) {
  if (tensor.scalar_type() != at::kFloat || !tensor.device().is_cpu() || tensor.dim() != 1 ||
      !is_flat_view(tensor)) {
    throw_status(core::StatusCode::InvalidArgument,
                 core::str(name, " must be a contiguous one-dimensional float32 tensor on the CPU"));
  }
  return {static_cast<float*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

void learn_scales(const at::Tensor& values, std::int64_t first, double weight, std::int64_t floor_bits,
                  const at::Tensor& mean_square, const at::Tensor& scale) {
  const std::span<const float> all = row_of(values, "values");
  const std::span<float> squares = row_of(mean_square, "mean_square");
  const std::span<float> scales = row_of(scale, "scale");
  const auto begin = static_cast<std::size_t>(first);
  if (first < 0 || begin > all.size() || squares.size() > all.size() - begin ||
      scales.size() != squares.size()) {
    throw_status(core::StatusCode::InvalidArgument,
                 core::str("mean_square and scale have ", squares.size(), " and ", scales.size(),
                           " elements, values ", all.size(), ", looked at from ", first, " on"));
  }
  collective::learn_squares(all.subspan(begin, squares.size()), static_cast<float>(1 - weight),
                            static_cast<float>(weight), squares);
  const std::int32_t floor = collective::mean_exponent(all) + static_cast<std::int32_t>(floor_bits);
  collective::scales_from(squares, floor, scales);
}

}  // namespace geocomm::binding
