// SiteCollectives: every collective of a group inside one site, by its inner backend.
//
// CPU tensors go to Gloo as rows of bytes, or of numbers that it adds up: Gloo has neither all dtypes nor all
// reductions, and does not look at strides. Tensors on an accelerator go to its backend as they are: what
// that one (NCCL) does not have is refused in its own words.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "binding/calls/collectives.h"
#include "binding/calls/feedback_work.h"
#include "binding/calls/inner_backends.h"
#include "binding/calls/reduction.h"
#include "binding/calls/split_rows.h"

namespace geocomm::binding {

class SiteCollectives final : public Collectives {
 public:
  SiteCollectives(int rank, int size, InnerBackends inner);

  void require_device(const at::Device& device) const override { backend(device); }
  WorkPtr all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, Milliseconds timeout) override;
  WorkPtr all_reduce_compressed(const at::Tensor& tensor, const codec::CodecSpec& codec,
                                const std::optional<at::Tensor>& residual,
                                const std::optional<at::Tensor>& next, const std::optional<at::Tensor>& scale,
                                bool average, double decay, Milliseconds timeout) override;
  collective::Interval encoded_range(std::uint64_t) const override { return {}; }
  WorkPtr all_reduce_coalesced(const Tensors& tensors, const c10d::ReduceOp& op,
                               Milliseconds timeout) override;
  WorkPtr all_reduce_sparse(const at::Tensor& tensor, Milliseconds timeout) override;
  WorkPtr reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, int root, Milliseconds timeout) override;
  WorkPtr reduce_scatter(const at::Tensor& output, const Tensors& inputs, const c10d::ReduceOp& op,
                         Milliseconds timeout) override;
  WorkPtr reduce_scatter_coalesced(const Tensors& outputs, const Tensors& inputs, const c10d::ReduceOp& op,
                                   Milliseconds timeout) override;
  WorkPtr all_gather(const Tensors& outputs, const at::Tensor& input, Milliseconds timeout) override;
  WorkPtr all_gather_coalesced(const std::vector<Tensors>& outputs, const Tensors& inputs,
                               Milliseconds timeout) override;
  WorkPtr broadcast(const at::Tensor& tensor, int root, Milliseconds timeout) override;
  WorkPtr gather(const Tensors& outputs, const at::Tensor& input, int root, Milliseconds timeout) override;
  WorkPtr scatter(const at::Tensor& output, const Tensors& inputs, int root, Milliseconds timeout) override;
  WorkPtr all_to_all(const Tensors& outputs, const Tensors& inputs, const Tensors& results,
                     Milliseconds timeout) override;
  WorkPtr all_to_all_single(const at::Tensor& output, const at::Tensor& input, const Splits& output_splits,
                            const Splits& input_splits, Milliseconds timeout) override;
  WorkPtr barrier(const at::Device& device, Milliseconds timeout) override;
  WorkPtr monitored_barrier(bool wait_all_ranks, Milliseconds timeout) override;
  WorkPtr send(const at::Tensor& tensor, int peer, int tag, Milliseconds timeout) override;
  WorkPtr recv(const at::Tensor& tensor, int peer, int tag, Milliseconds timeout) override;
  WorkPtr recv_any(const at::Tensor& tensor, int tag, Milliseconds timeout) override;

  const std::shared_ptr<ExposedTime>& exposed() const { return exposed_; }

 private:
  class Rows;

  c10d::Backend& backend(const at::Device& device) const;
  // Done at once.
  WorkPtr done(c10d::OpType type, Tensors outputs);
  // Done when `inner` is and `then` has run; `then` may be null.
  WorkPtr done_after(const WorkPtr& inner, c10d::OpType type, Tensors outputs, std::function<void()> then);

  const int rank_;
  const int size_;
  const InnerBackends inner_;
  const std::shared_ptr<ExposedTime> exposed_ = std::make_shared<ExposedTime>();
  std::atomic<std::uint64_t> next_seq_{1};
};

// A message to or from a rank of the same site, `peer` by its rank there; -1: from any.
WorkPtr message_in_site(c10d::Backend& backend, const at::Tensor& tensor, int peer, int tag, bool sends,
                        const std::shared_ptr<ExposedTime>& exposed);

}  // namespace geocomm::binding
