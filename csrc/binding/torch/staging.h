// Moving data between what the user passed and what the stages work on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "binding/torch/comm_error.h"
#include "binding/torch/torch_prelude.h"
#include "collective/layout/layout.h"
#include "core/dtype.h"

namespace geocomm::binding {

// Copies between devices are only enqueued, on the current stream.
constexpr bool kNonBlocking = true;

inline void from_host(const at::Tensor& tensor, const at::Tensor& host) {
  if (!tensor.is_same(host)) tensor.copy_(host, kNonBlocking);
}

// One-dimensional with stride 1; shares memory with `tensor` where is_flat_view() says so.
inline at::Tensor flat(const at::Tensor& tensor) {
  const auto row = tensor.resolve_neg().resolve_conj().contiguous().view({-1});
  // A single element counts as contiguous whatever its stride, but cannot be viewed as bytes then.
  return row.numel() == 1 ? row.as_strided({1}, {1}) : row;
}
inline at::Tensor flat_bytes(const at::Tensor& tensor) {
  return flat(tensor).view(at::kByte);
}

// Rows of bytes as one. Where they lie one after the other in one tensor's memory, it is that memory.
inline at::Tensor joined(const Tensors& rows) {
  const at::Tensor* first = nullptr;
  std::int64_t size = 0;
  for (const auto& row : rows) {
    if (row.numel() == 0) continue;
    if (first == nullptr) first = &row;
    const bool follows = row.is_alias_of(*first) && row.storage_offset() == first->storage_offset() + size;
    if (!follows) return at::cat(rows);
    size += row.numel();
  }
  return first == nullptr ? rows.front() : first->as_strided({size}, {1});
}

// Whether writing to one may change the other.
inline bool may_overlap(const at::Tensor& one, const at::Tensor& other) {
  if (!one.is_alias_of(other)) return false;
  if (!one.is_contiguous() || !other.is_contiguous()) return true;
  const auto* begin = static_cast<const std::byte*>(one.const_data_ptr());
  const auto* other_begin = static_cast<const std::byte*>(other.const_data_ptr());
  return begin < other_begin + other.nbytes() && other_begin < begin + one.nbytes();
}

// The inputs of an operation that writes to the outputs while it reads: copies of those that lie there.
inline Tensors apart_from(const Tensors& outputs, Tensors inputs) {
  for (auto& input : inputs) {
    const auto overlaps = [&](const at::Tensor& output) { return may_overlap(input, output); };
    if (std::ranges::any_of(outputs, overlaps)) input = input.clone();
  }
  return inputs;
}

inline std::span<std::byte> bytes_of(const at::Tensor& host) {
  return {static_cast<std::byte*>(host.data_ptr()), host.nbytes()};
}

// Whether writing to flat(tensor) writes to the tensor: not where it is strided, lazily negated or
// conjugated.
inline bool is_flat_view(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj();
}

// Autograd takes note that a result was written to the tensor's memory: where something was saved to compute
// gradients from, it refuses to. Of those results that Gloo copies to their place, too.
inline void mark_written(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

// The values of the outputs, one after the other.
inline void take_rows(const at::Tensor& bytes, const Tensors& outputs) {
  std::int64_t offset = 0;
  for (const auto& output : outputs) {
    const auto size = static_cast<std::int64_t>(output.nbytes());
    auto row = bytes.narrow(0, offset, size);
    if (offset % output.element_size() != 0) row = row.clone();  // a view of its dtype starts aligned
    output.copy_(row.view(output.scalar_type()).view(output.sizes()));
    offset += size;
  }
}

// What a reduction works on: of complex numbers the pairs of reals. Shares memory, unless the tensor is
// conjugated lazily.
inline at::Tensor reals_of(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}
inline Tensors reals_of(const Tensors& tensors) {
  Tensors reals;
  for (const auto& tensor : tensors) reals.push_back(reals_of(tensor));
  return reals;
}

// Copies runs of elements; both one-dimensional.
inline void copy_runs(const at::Tensor& to, const at::Tensor& from,
                      const std::vector<collective::CopyRun>& runs) {
  for (const auto& run : runs) {
    const auto count = static_cast<std::int64_t>(run.count);
    to.narrow(0, static_cast<std::int64_t>(run.to), count)
        .copy_(from.narrow(0, static_cast<std::int64_t>(run.from), count), kNonBlocking);
  }
}

// What torch calls the dtypes that geocomm computes with.
inline constexpr std::pair<at::ScalarType, core::DType> kDTypes[] = {
    {at::kFloat, core::DType::Float32}, {at::kDouble, core::DType::Float64},
    {at::kHalf, core::DType::Float16},  {at::kBFloat16, core::DType::BFloat16},
    {at::kChar, core::DType::Int8},     {at::kByte, core::DType::UInt8},
    {at::kShort, core::DType::Int16},   {at::kInt, core::DType::Int32},
    {at::kLong, core::DType::Int64},    {at::kBool, core::DType::Bool}};

// The dtype that geocomm computes with, or UInt8 for one that it only moves.
inline core::DType moved_dtype(at::ScalarType type) {
  for (const auto& [torchs, ours] : kDTypes) {
    if (torchs == type) return ours;
  }
  return core::DType::UInt8;
}

inline at::ScalarType scalar_type_of(core::DType dtype) {
  for (const auto& [torchs, ours] : kDTypes) {
    if (ours == dtype) return torchs;
  }
  return at::kByte;
}

inline core::DType reduced_dtype(at::ScalarType type) {
  const core::DType dtype = moved_dtype(type);
  if (dtype == core::DType::UInt8 && type != at::kByte) {
    throw_status(core::StatusCode::Unsupported, std::string("cannot reduce tensors of dtype ") +
                                                    c10::toString(type) +
                                                    "; reduce float32, float64, float16, bfloat16, an "
                                                    "integer type, bool or complex numbers");
  }
  return dtype;
}

}  // namespace geocomm::binding
