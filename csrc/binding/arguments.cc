#include "binding/arguments.h"

#include <algorithm>
#include <string>

#include "binding/comm_error.h"
#include "core/str.h"

namespace geocomm::binding {

using core::StatusCode;

namespace {

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw_status(StatusCode::InvalidArgument, core::str(parts...));
}

void check_defined(const at::Tensor& tensor, const char* op) {
  if (!tensor.defined()) refuse(op, " got None in place of a tensor");
}

// Elements of a dense tensor that share memory. Rarer ways to get them than expand() are copied correctly.
bool has_shared_elements(const at::Tensor& tensor) {
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1 && tensor.stride(dim) == 0) return tensor.numel() > 1;
  }
  return false;
}

// Whether `tensor` may stand in a list beside `own`.
void check_alike(const at::Tensor& tensor, const at::Tensor& own, const char* op) {
  check_dense(tensor, op);
  if (tensor.scalar_type() != own.scalar_type() || tensor.device() != own.device()) {
    refuse(op, " takes tensors of one dtype on one device, got ", c10::toString(tensor.scalar_type()), " on ",
           tensor.device().str(), " beside ", c10::toString(own.scalar_type()), " on ", own.device().str());
  }
}

}  // namespace

at::Device device_of(const Tensors& tensors, const char* op) {
  if (tensors.empty()) refuse(op, " got an empty list of tensors");
  check_defined(tensors.front(), op);
  return tensors.front().device();
}

int checked_root(std::int64_t root, int ranks, const char* op) {
  if (root < 0 || root >= ranks) {
    refuse(op, ": rank ", root, " is not in this group, whose ranks are 0 to ", ranks - 1);
  }
  return static_cast<int>(root);
}

void check_message(int peer, int tag, int rank, int ranks, const char* op) {
  checked_root(peer, ranks, op);
  if (peer == rank) refuse(op, ": rank ", peer, " is this rank itself; name another one");
  if (tag < 0) refuse(op, ": tag ", tag, " is negative; tags start at 0");
}

void check_written(const at::Tensor& tensor, const char* op) {
  check_defined(tensor, op);
  if (tensor.layout() != at::kStrided || !has_shared_elements(tensor)) return;
  refuse(op,
         " cannot write to a tensor whose elements share memory, as expand() makes them; pass clone() of it");
}

void check_written(const Tensors& tensors, const char* op) {
  for (const auto& tensor : tensors) check_written(tensor, op);
}

void check_written(const std::vector<Tensors>& lists, const char* op) {
  for (const auto& list : lists) check_written(list, op);
}

void check_mean(const Tensors& tensors, const c10d::ReduceOp& op) {
  if (op != c10d::ReduceOp::AVG) return;
  for (const auto& tensor : tensors) {
    if (tensor.defined() && tensor.scalar_type() == at::kBool) {
      refuse("ReduceOp.AVG of bool tensors has no meaning; convert them to a float dtype");
    }
  }
}

void check_dense(const at::Tensor& tensor, const char* op) {
  check_defined(tensor, op);
  if (tensor.layout() != at::kStrided) {
    throw_status(
        StatusCode::Unsupported,
        core::str(op, " takes dense tensors; of sparse ones, only the sum (all_reduce) crosses sites"));
  }
  if (!tensor.device().is_cpu() && !tensor.device().is_cuda()) {
    throw_status(
        StatusCode::Unsupported,
        core::str(op, " takes tensors on CPUs and CUDA devices, got one on ", tensor.device().str()));
  }
}

const at::Tensor& single(const Tensors& tensors, const char* op) {
  if (tensors.size() != 1) refuse(op, " takes one tensor per rank, got ", tensors.size());
  check_dense(tensors.front(), op);
  return tensors.front();
}

const Tensors& single_list(const std::vector<Tensors>& lists, bool needed, const char* op) {
  static const Tensors kNone;
  if (!needed) {
    const bool given = std::ranges::any_of(lists, [](const Tensors& list) { return !list.empty(); });
    if (given) refuse(op, " takes a list of tensors at the root alone, which this rank is not");
    return kNone;
  }
  if (lists.size() != 1) refuse(op, " takes one list of tensors per rank, got ", lists.size());
  return lists.front();
}

void check_pieces(const Tensors& pieces, const at::Tensor& own, int ranks, const char* op) {
  if (pieces.size() != static_cast<std::size_t>(ranks)) {
    refuse(op, " takes a list of ", ranks, " tensors, one per rank, got ", pieces.size());
  }
  for (const auto& piece : pieces) {
    check_alike(piece, own, op);
    if (piece.numel() != own.numel()) {
      refuse(op, ": a tensor of the list has ", piece.numel(), " elements, this rank's own has ",
             own.numel());
    }
  }
}

void check_whole(const at::Tensor& whole, const at::Tensor& own, int ranks, const char* op) {
  check_dense(own, op);
  check_alike(whole, own, op);
  if (whole.numel() != own.numel() * ranks) {
    refuse(op, ": the tensor of all ranks has ", whole.numel(), " elements, expected ", own.numel(),
           " for each of ", ranks, " ranks");
  }
}

void check_wholes(const Tensors& wholes, const Tensors& own, int ranks, const char* op) {
  if (wholes.size() != own.size()) {
    refuse(op, " takes as many outputs as inputs, got lists of ", wholes.size(), " and ", own.size());
  }
  for (std::size_t i = 0; i < own.size(); ++i) check_whole(wholes[i], own[i], ranks, op);
}

void check_exchange(const Tensors& outputs, const Tensors& inputs, int rank, int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  if (outputs.size() != count || inputs.size() != count) {
    refuse("all_to_all: ", inputs.size(), " inputs and ", outputs.size(), " outputs for ", ranks, " ranks");
  }
  for (const auto& tensor : inputs) check_alike(tensor, inputs.front(), "all_to_all");
  for (const auto& tensor : outputs) check_alike(tensor, inputs.front(), "all_to_all");
  const auto own = static_cast<std::size_t>(rank);
  if (outputs[own].numel() != inputs[own].numel()) {
    refuse("all_to_all: rank ", rank, " sends itself ", inputs[own].numel(), " elements and expects ",
           outputs[own].numel());
  }
}

Tensors split_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int ranks,
                   const char* what) {
  check_dense(tensor, "all_to_all");
  if (tensor.dim() == 0) refuse("all_to_all takes tensors of one dimension or more");
  const std::int64_t rows = tensor.size(0);
  std::vector<std::int64_t> sizes = splits;
  if (sizes.empty()) {
    if (rows % ranks != 0) {
      refuse("all_to_all: ", rows, " rows of the ", what, " do not divide by ", ranks, " ranks");
    }
    sizes.assign(static_cast<std::size_t>(ranks), rows / ranks);
  }
  std::int64_t total = 0;
  bool possible = static_cast<int>(sizes.size()) == ranks;
  for (const auto size : sizes) {
    possible = possible && size >= 0 && size <= rows - total;
    if (possible) total += size;
  }
  if (!possible || total != rows) {
    refuse("all_to_all: the ", what, " splits must be ", ranks, " numbers that add up to ", rows, " rows");
  }
  Tensors views;
  std::int64_t offset = 0;
  for (const auto size : sizes) {
    views.push_back(tensor.narrow(0, offset, size));
    offset += size;
  }
  return views;
}

}  // namespace geocomm::binding
