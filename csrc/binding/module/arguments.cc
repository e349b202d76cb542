#include "binding/module/arguments.h"

#include <algorithm>
#include <string>

#include "binding/torch/comm_error.h"
#include "core/str.h"

namespace geocomm::binding {

using core::StatusCode;

namespace {

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw_status(StatusCode::InvalidArgument, core::str(parts...));
}

void check_given(const at::Tensor& tensor, const char* op) {
  if (!tensor.defined()) refuse(op, " got None in place of a tensor");
  if (tensor.has_storage() && tensor.numel() > 0 && tensor.storage().nbytes() == 0) {
    refuse(op, " got a tensor whose storage was freed (untyped_storage().resize_(0))");
  }
}

// Whether torch copies elements of this dtype; not those of less than a byte, nor quantized ones.
bool is_copied(at::ScalarType type) {
  return at::isFloatingType(type) || at::isComplexType(type) || at::isIntegralType(type, true) ||
         at::isBitsType(type);
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
  for (const auto& tensor : tensors) check_given(tensor, op);
  const at::Device device = tensors.front().device();
  for (const auto& tensor : tensors) {
    if (tensor.device() != device) {
      refuse(op, " takes tensors on one device, got ", device.str(), " and ", tensor.device().str());
    }
  }
  return device;
}

int checked_rank(std::int64_t rank, int ranks, const char* op) {
  if (rank < 0 || rank >= ranks) {
    refuse(op, ": rank ", rank, " is not in this group, whose ranks are 0 to ", ranks - 1);
  }
  return static_cast<int>(rank);
}

void check_message(int peer, int tag, int rank, int ranks, const char* op) {
  checked_rank(peer, ranks, op);
  if (peer == rank) refuse(op, ": rank ", peer, " is this rank itself; name another one");
  check_tag(tag, op);
}

void check_tag(int tag, const char* op) {
  if (tag < 0) refuse(op, ": tag ", tag, " is negative; tags start at 0");
}

void check_written(const at::Tensor& tensor, const char* op) {
  check_given(tensor, op);
  if (tensor.layout() != at::kStrided || tensor.numel() <= 1) return;
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) return;
  refuse(op,
         " cannot write to a tensor whose elements share memory, as expand() makes them; pass clone() of it");
}

void check_written(const Tensors& tensors, const char* op) {
  for (const auto& tensor : tensors) check_written(tensor, op);
}

void check_written(const std::vector<Tensors>& lists, const char* op) {
  for (const auto& list : lists) check_written(list, op);
}

void check_reduced(const Tensors& results, const c10d::ReduceOp& reduce_op, const char* op) {
  check_written(results, op);
  const bool sum = reduce_op == c10d::ReduceOp::SUM;
  const bool mean = reduce_op == c10d::ReduceOp::AVG;
  for (const auto& result : results) {
    if (mean && result.scalar_type() == at::kBool) {
      refuse(op, ": ReduceOp.AVG of bool tensors has no meaning; convert them to a float dtype");
    }
    if (!result.is_complex()) continue;
    if (!sum && !mean) refuse(op, " of complex tensors takes ReduceOp.SUM and AVG alone");
    if (result.is_conj()) {
      refuse(op, " does not take tensors that are conjugated lazily; pass resolve_conj() of them");
    }
  }
}

void check_sparse_sum(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    throw_status(StatusCode::Unsupported,
                 "all_reduce of sparse tensors takes CPU tensors (NCCL has none of its own); use "
                 "tensor.cpu(), or dense gradients (sparse=False)");
  }
  if (tensor.scalar_type() == at::kHalf) {
    throw_status(StatusCode::Unsupported, "torch does not add sparse tensors of float16 on CPUs");
  }
}

void check_dense(const at::Tensor& tensor, const char* op) {
  check_given(tensor, op);
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
  if (!is_copied(tensor.scalar_type())) {
    throw_status(StatusCode::Unsupported,
                 core::str(op, " does not take tensors of dtype ", c10::toString(tensor.scalar_type())));
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

void check_pieces(const Tensors& pieces, const at::Tensor& own, int ranks, const char* op, bool may_differ) {
  if (pieces.size() != static_cast<std::size_t>(ranks)) {
    refuse(op, " takes a list of ", ranks, " tensors, one per rank, got ", pieces.size());
  }
  for (const auto& piece : pieces) {
    check_alike(piece, own, op);
    if (!may_differ && piece.numel() != own.numel()) {
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

void check_splits(const at::Tensor& tensor, const Splits& splits, int ranks, const char* what) {
  check_given(tensor, "all_to_all");
  if (tensor.dim() == 0) refuse("all_to_all takes tensors of one dimension or more");
  const std::int64_t rows = tensor.size(0);
  if (splits.empty()) {
    if (rows % ranks == 0) return;
    refuse("all_to_all: ", rows, " rows of the ", what, " do not divide by ", ranks, " ranks");
  }
  std::int64_t left = rows;
  for (const auto size : splits) {
    if (size < 0 || size > left) left = -1;  // for good: nothing fits
    if (left >= 0) left -= size;
  }
  if (left != 0 || static_cast<int>(splits.size()) != ranks) {
    refuse("all_to_all: the ", what, " splits must be ", ranks, " numbers that add up to ", rows, " rows");
  }
}

}  // namespace geocomm::binding
