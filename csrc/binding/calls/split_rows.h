// The rows of all_to_all_single.
#pragma once

#include <cstdint>
#include <vector>

#include "binding/torch/torch_prelude.h"

namespace geocomm::binding {

// How many rows for each rank. Empty: as many for each.
using Splits = std::vector<std::int64_t>;

// One view per rank.
inline Tensors split_rows(const at::Tensor& tensor, const Splits& splits, int ranks) {
  Tensors views;
  std::int64_t offset = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto size = splits.empty() ? tensor.size(0) / ranks : splits[static_cast<std::size_t>(rank)];
    views.push_back(tensor.narrow(0, offset, size));
    offset += size;
  }
  return views;
}

}  // namespace geocomm::binding
