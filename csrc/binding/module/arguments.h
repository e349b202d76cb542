// What can be wrong with the arguments of a call, found before it has a number or has sent anything: an error
// on this rank, and the group goes on. All throw InvalidArgument, or Unsupported for what geocomm does not
// move.
#pragma once

#include <cstdint>
#include <vector>

#include "binding/calls/split_rows.h"
#include "binding/torch/torch_prelude.h"

namespace geocomm::binding {

// Where the tensors are, of which there must be one; each must have memory.
at::Device device_of(const Tensors& tensors, const char* op);
int checked_rank(std::int64_t rank, int ranks, const char* op);
// Of a send or a receive.
void check_message(int peer, int tag, int rank, int ranks, const char* op);
void check_tag(int tag, const char* op);
// What a call writes to: no element may share its memory with another one.
void check_written(const at::Tensor& tensor, const char* op);
void check_written(const Tensors& tensors, const char* op);
void check_written(const std::vector<Tensors>& lists, const char* op);
// What a reduction writes to, too. No mean of bools, since it means nothing; complex numbers have sums and
// means alone.
void check_reduced(const Tensors& results, const c10d::ReduceOp& reduce_op, const char* op);

// The rows of `what`, in all_to_all_single.
void check_splits(const at::Tensor& tensor, const Splits& splits, int ranks, const char* what);

// Of the sum of sparse tensors.
void check_sparse_sum(const at::Tensor& tensor);
// Dense, with memory, of a dtype and on a device that geocomm serves.
void check_dense(const at::Tensor& tensor, const char* op);
// The one tensor of a rank, dense.
const at::Tensor& single(const Tensors& tensors, const char* op);
// The list of a rank that has to give one, or the empty one of a rank that has not.
const Tensors& single_list(const std::vector<Tensors>& lists, bool needed, const char* op);
// Whether `pieces` are for each of `ranks` what `own` is for one: as many elements of its dtype, where it is.
// `may_differ`: in the number of elements.
void check_pieces(const Tensors& pieces, const at::Tensor& own, int ranks, const char* op,
                  bool may_differ = false);
// The same for one tensor with room for all of them; and for lists of such tensors.
void check_whole(const at::Tensor& whole, const at::Tensor& own, int ranks, const char* op);
void check_wholes(const Tensors& wholes, const Tensors& own, int ranks, const char* op);
// all_to_all: one tensor per rank and direction; what a rank sends to itself fits what it gets from there.
void check_exchange(const Tensors& outputs, const Tensors& inputs, int rank, int ranks);

}  // namespace geocomm::binding
