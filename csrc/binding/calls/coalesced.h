// Several operations with one Work, over SiteCollectives and WanCollectives alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "binding/calls/geo_work.h"
#include "binding/torch/staging.h"

namespace geocomm::binding {

// issue(i) for each of `count`; done when all are.
template <typename Calls, typename Issue>
WorkPtr each_together(Calls& calls, int rank, c10d::OpType type, std::size_t count, Tensors outputs,
                      Issue&& issue) {
  std::vector<WorkPtr> works;
  for (std::size_t i = 0; i < count; ++i) works.push_back(issue(i));
  if (works.size() == 1) return works.front();
  return join_works(rank, type, "geocomm:coalesced", std::move(works), std::move(outputs), calls.exposed());
}

// all_reduce of several tensors: of one dtype as one operation, which takes one latency in place of one each.
template <typename Calls>
WorkPtr all_reduce_together(Calls& calls, int rank, const Tensors& tensors, const c10d::ReduceOp& op,
                            Milliseconds timeout) {
  const auto type = c10d::OpType::ALLREDUCE_COALESCED;
  const bool uniform = std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == tensors.front().scalar_type();
  });
  if (tensors.size() == 1 || !uniform) {
    return each_together(calls, rank, type, tensors.size(), tensors,
                         [&](std::size_t i) { return calls.all_reduce(tensors[i], op, timeout); });
  }
  Tensors flats;
  for (const auto& tensor : tensors) flats.push_back(flat(tensor));
  auto together = at::cat(flats);
  auto work = calls.all_reduce(together, op, timeout);
  auto joined = c10::make_intrusive<GeoWork>(rank, type, "geocomm:all_reduce_coalesced",
                                             work->getSequencenumber(), tensors, tensors, calls.exposed());
  join_works(joined, {work}, [together, tensors] {
    std::int64_t offset = 0;
    for (const auto& tensor : tensors) {
      tensor.copy_(together.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      mark_written(tensor);
      offset += tensor.numel();
    }
  });
  return joined;
}

}  // namespace geocomm::binding
