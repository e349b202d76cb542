// A sparse COO tensor as rows, one for each of its entries: what can be cut, sent and put together.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "binding/torch/staging.h"
#include "core/str.h"

namespace geocomm::binding {

// What ranks must agree on before they add up sparse tensors, and the one thing that may differ. Goes over
// the WAN as it stands here.
struct SparseSummary {
  static constexpr std::int64_t kMaxDims = 16;
  std::int64_t entries = 0;
  std::int64_t scalar_type = 0;  // at::ScalarType
  std::int64_t sparse_dims = 0;
  std::int64_t dims = 0;
  std::array<std::int64_t, kMaxDims> sizes{};  // zero from `dims` on

  // Of a coalesced tensor. Throws InvalidArgument: too many dimensions.
  static SparseSummary of(const at::Tensor& tensor) {
    if (tensor.dim() > kMaxDims) {
      throw_status(core::StatusCode::InvalidArgument,
                   core::str("a sparse tensor of ", tensor.dim(), " dimensions; at most ", kMaxDims,
                             " can be reduced"));
    }
    SparseSummary summary{.entries = tensor._nnz(),
                          .scalar_type = static_cast<std::int64_t>(tensor.scalar_type()),
                          .sparse_dims = tensor.sparse_dim(),
                          .dims = tensor.dim()};
    std::ranges::copy(tensor.sizes(), summary.sizes.begin());
    return summary;
  }

  bool has_shape_of(const SparseSummary& other) const {
    SparseSummary same = other;
    same.entries = entries;
    return *this == same;
  }
  // Whether coalesced tensors of this shape may have so many entries. `dims` and `sparse_dims` are sound.
  bool has_possible_entries() const {
    std::int64_t left = entries;  // divided by the sizes, rounded up: at most 1 if they have room
    for (std::int64_t i = 0; i < sparse_dims; ++i) {
      const auto size = sizes[static_cast<std::size_t>(i)];
      if (size == 0) return entries == 0;
      left = left / size + (left % size != 0 ? 1 : 0);
    }
    return entries >= 0 && left <= 1;
  }
  // "float [1000, 16] with 1 sparse dimension(s)". Takes any numbers.
  std::string describe() const {
    std::string text = "dtype " + std::to_string(scalar_type);
    if (scalar_type >= 0 && scalar_type < static_cast<std::int64_t>(at::ScalarType::NumOptions)) {
      text = c10::toString(static_cast<at::ScalarType>(scalar_type));
    }
    text += " [";
    for (std::int64_t i = 0; i < std::min(dims, kMaxDims); ++i) {
      text += core::str(i > 0 ? ", " : "", sizes[static_cast<std::size_t>(i)]);
    }
    return core::str(text, "] with ", sparse_dims, " sparse dimension(s)");
  }

  friend bool operator==(const SparseSummary&, const SparseSummary&) = default;
};
static_assert(sizeof(SparseSummary) == 8 * (4 + SparseSummary::kMaxDims));

// Contiguous, on the CPU.
struct SparseRows {
  at::Tensor indices;  // int64 [entries, sparse dimensions]
  at::Tensor values;   // uint8 [entries, bytes of an entry's value]

  static SparseRows of(const at::Tensor& coalesced) {
    auto rows = room_for(coalesced, coalesced._nnz());
    rows.indices.copy_(coalesced._indices().t());
    rows.values.copy_(flat_bytes(coalesced._values()).view(rows.values.sizes()));
    return rows;
  }
  // Uninitialised, for so many entries of a tensor like this one.
  static SparseRows room_for(const at::Tensor& like, std::int64_t entries) {
    std::int64_t value_bytes = static_cast<std::int64_t>(like.element_size());
    for (const auto size : like.sizes().slice(static_cast<std::size_t>(like.sparse_dim()))) {
      value_bytes *= size;
    }
    return {at::empty({entries, like.sparse_dim()}, at::kLong), at::empty({entries, value_bytes}, at::kByte)};
  }

  std::int64_t count() const { return indices.size(0); }
  // Shares memory.
  SparseRows slice(std::int64_t begin, std::int64_t count) const {
    return {indices.narrow(0, begin, count), values.narrow(0, begin, count)};
  }
  // Whether all indices lie in the shape of `like`: torch takes them unchecked, and writes there.
  bool is_within(const at::Tensor& like) const {
    if (indices.numel() == 0) return true;
    const auto [lowest, highest] = indices.aminmax(0);
    for (std::int64_t i = 0; i < like.sparse_dim(); ++i) {
      if (lowest[i].item<std::int64_t>() < 0 || highest[i].item<std::int64_t>() >= like.size(i)) return false;
    }
    return true;
  }
  // The rows are those of a coalesced tensor.
  at::Tensor tensor_like(const at::Tensor& like) const {
    std::vector<std::int64_t> shape{count()};
    const auto dense = like.sizes().slice(static_cast<std::size_t>(like.sparse_dim()));
    shape.insert(shape.end(), dense.begin(), dense.end());
    return at::sparse_coo_tensor(indices.t().contiguous(),
                                 values.reshape({-1}).view(like.scalar_type()).view(shape), like.sizes(),
                                 like.options(), /*is_coalesced=*/true);
  }
};

}  // namespace geocomm::binding
