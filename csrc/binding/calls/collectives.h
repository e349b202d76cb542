// Collectives: what does a group's operations: SiteCollectives inside one site, WanCollectives over several.
// Both give the same answers and refusals, and a Future for every Work.
#pragma once

#include <optional>
#include <vector>

#include "binding/calls/reduction.h"
#include "binding/calls/split_rows.h"
#include "codec/spec/codec_spec.h"
#include "collective/layout/layout.h"

namespace geocomm::binding {

// Thread-safe.
class Collectives {
 public:
  Collectives() = default;
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;
  virtual ~Collectives() = default;

  // Throws Unsupported where the site's ranks have no backend for such tensors.
  virtual void require_device(const at::Device& device) const = 0;

  // All take one tensor (or list) per rank on one device, contiguous or not, which fit each other
  // (arguments.h); the sizes must agree over the ranks as for Gloo. They return at once; errors of the
  // operation come out of the Work. They are called below autograd (below_autograd.h), as their stages are.
  virtual WorkPtr all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, Milliseconds timeout) = 0;
  // With `codec` in place of the group's, from its min_compress_bytes on (inside one site with none);
  // `average`: the mean. `residual`: float32 on the tensor's device, contiguous, of the elements
  // encoded_range(); updated when the operation succeeds with a finite result, before its Work is done.
  // `next`: like it, and takes the new residual in its place, which means something only if the operation
  // succeeds. `scale`: like it, powers of two; what is encoded is divided by it, on all ranks alike, and
  // multiplied again. One operation at a time per residual.
  virtual WorkPtr all_reduce_compressed(const at::Tensor& tensor, const codec::CodecSpec& codec,
                                        const std::optional<at::Tensor>& residual,
                                        const std::optional<at::Tensor>& next,
                                        const std::optional<at::Tensor>& scale, bool average, double decay,
                                        Milliseconds timeout) = 0;
  // The elements of a tensor that this rank encodes in an all-reduce; none inside one site.
  virtual collective::Interval encoded_range(std::uint64_t elements) const = 0;
  virtual WorkPtr all_reduce_coalesced(const Tensors& tensors, const c10d::ReduceOp& op,
                                       Milliseconds timeout) = 0;
  // Sum of sparse COO tensors on the CPU, which must agree in dtype, shape and sparse dimensions but not in
  // their entries, and need not be coalesced; the result is. It is the sum in order of sites of the sums in
  // order of rank, rounded to the dtype each time: for sites of one rank, Gloo's bit for bit. Over several
  // sites, every entry of a site's sum crosses the WAN once per other site, after its number has: two
  // latencies.
  virtual WorkPtr all_reduce_sparse(const at::Tensor& tensor, Milliseconds timeout) = 0;
  virtual WorkPtr reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, int root,
                         Milliseconds timeout) = 0;
  virtual WorkPtr reduce_scatter(const at::Tensor& output, const Tensors& inputs, const c10d::ReduceOp& op,
                                 Milliseconds timeout) = 0;
  virtual WorkPtr reduce_scatter_coalesced(const Tensors& outputs, const Tensors& inputs,
                                           const c10d::ReduceOp& op, Milliseconds timeout) = 0;
  virtual WorkPtr all_gather(const Tensors& outputs, const at::Tensor& input, Milliseconds timeout) = 0;
  // `outputs`: for each of `inputs` what all_gather() takes.
  virtual WorkPtr all_gather_coalesced(const std::vector<Tensors>& outputs, const Tensors& inputs,
                                       Milliseconds timeout) = 0;
  virtual WorkPtr broadcast(const at::Tensor& tensor, int root, Milliseconds timeout) = 0;
  virtual WorkPtr gather(const Tensors& outputs, const at::Tensor& input, int root, Milliseconds timeout) = 0;
  virtual WorkPtr scatter(const at::Tensor& output, const Tensors& inputs, int root,
                          Milliseconds timeout) = 0;
  // `results`: what the Future gives; the tensors whose parts `outputs` are, or these themselves.
  virtual WorkPtr all_to_all(const Tensors& outputs, const Tensors& inputs, const Tensors& results,
                             Milliseconds timeout) = 0;
  virtual WorkPtr all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                                    const Splits& output_splits, const Splits& input_splits,
                                    Milliseconds timeout) = 0;
  virtual WorkPtr barrier(const at::Device& device, Milliseconds timeout) = 0;
  virtual WorkPtr monitored_barrier(bool wait_all_ranks, Milliseconds timeout) = 0;
  virtual WorkPtr send(const at::Tensor& tensor, int peer, int tag, Milliseconds timeout) = 0;
  virtual WorkPtr recv(const at::Tensor& tensor, int peer, int tag, Milliseconds timeout) = 0;
  virtual WorkPtr recv_any(const at::Tensor& tensor, int tag, Milliseconds timeout) = 0;
};

}  // namespace geocomm::binding
