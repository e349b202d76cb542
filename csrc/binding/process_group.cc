#include "binding/process_group.h"

#include <cmath>
#include <set>
#include <utility>

#include "binding/gil_release.h"
#include "binding/staging.h"
#include "core/log.h"
#include "core/str.h"

namespace geocomm::binding {

using core::StatusCode;

namespace {

// What shutdown() gives operations in flight before it fails them.
constexpr std::chrono::seconds kShutdownGrace{5};

const at::Tensor& single(const Tensors& tensors, const char* op) {
  if (tensors.size() != 1) {
    throw_status(StatusCode::InvalidArgument,
                 core::str(op, " takes one tensor per rank, got ", tensors.size()));
  }
  if (tensors.front().layout() != at::kStrided) {
    throw_status(
        StatusCode::Unsupported,
        core::str(op, " takes dense tensors; of sparse ones, only the sum (all_reduce) crosses sites"));
  }
  return tensors.front();
}

// The list of a rank that has to give one (or the empty one of a rank that has not).
const Tensors& single_list(const std::vector<Tensors>& lists, bool needed, const char* op) {
  static const Tensors kNone;
  if (lists.empty() && !needed) return kNone;
  if (lists.size() != 1) {
    throw_status(StatusCode::InvalidArgument,
                 core::str(op, " takes one list of tensors per rank, got ", lists.size()));
  }
  return lists.front();
}

// Rows per rank → one view per rank.
Tensors split_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int ranks,
                   const char* what) {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  std::vector<std::int64_t> sizes = splits;
  if (sizes.empty()) {
    if (rows % ranks != 0) {
      throw_status(StatusCode::InvalidArgument, core::str("all_to_all: ", rows, " rows of the ", what,
                                                          " do not divide by ", ranks, " ranks"));
    }
    sizes.assign(static_cast<std::size_t>(ranks), rows / ranks);
  }
  std::int64_t total = 0;
  for (const auto size : sizes) total += size;
  if (static_cast<int>(sizes.size()) != ranks || total != rows) {
    throw_status(StatusCode::InvalidArgument, core::str("all_to_all: the ", what, " splits must be ", ranks,
                                                        " numbers that add up to ", rows, " rows"));
  }
  Tensors views;
  std::int64_t offset = 0;
  for (const auto size : sizes) {
    views.push_back(tensor.narrow(0, offset, size));
    offset += size;
  }
  return views;
}

}  // namespace

ProcessGroupGeocomm::ProcessGroupGeocomm(int rank, int size, Milliseconds timeout, InnerBackends inner,
                                         std::shared_ptr<WanCollectives> wan,
                                         std::shared_ptr<ProcessResources> process, SplitFunction split,
                                         ShutdownFunction on_shutdown)
    : Backend(rank, size),
      options_(c10::make_intrusive<Options>(timeout)),
      inner_(std::move(inner)),
      wan_(std::move(wan)),
      process_(std::move(process)),
      split_(std::move(split)),
      on_shutdown_(std::move(on_shutdown)) {}

ProcessGroupGeocomm::~ProcessGroupGeocomm() {
  // TORCH_DISTRIBUTED_DEBUG=DETAIL in torch 2.11 never forwards shutdown(): teardown must work from here
  // alone. Python frees the object with the GIL held, which other threads may be waiting for: users'
  // callbacks, and those of Gloo, which its destructor joins while they free tensors.
  const GilRelease released;
  on_shutdown_ = nullptr;  // the interpreter may be gone
  if (!mark_.is_here()) {
    core::leak(std::move(inner_));  // Gloo would wait for threads that are not here
    return;
  }
  try {
    shutdown();
  } catch (const std::exception& e) {
    core::log(core::LogLevel::Warning, "closing a process group: ", e.what());
  }
  coalesced_.clear();
  wan_.reset();
  inner_.clear();
}

c10d::Backend& ProcessGroupGeocomm::inner(const at::Device& device) const {
  require_own_process(mark_);
  const auto found = inner_.find(device.type());
  if (found == inner_.end()) {
    throw_status(StatusCode::Unsupported,
                 core::str("this process group has no backend for tensors on ", device.str()));
  }
  return *found->second.pre;
}

void ProcessGroupGeocomm::for_each_inner(const std::function<void(c10d::Backend&)>& visit) const {
  std::set<c10d::Backend*> seen;
  for (const auto& [device, pair] : inner_) {
    for (const auto& backend : {pair.pre, pair.post}) {
      if (backend && seen.insert(backend.get()).second) visit(*backend);
    }
  }
}

Milliseconds ProcessGroupGeocomm::timeout_or_default(Milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
}

void ProcessGroupGeocomm::setTimeout(Milliseconds timeout) {
  options_->timeout = timeout;
  for_each_inner([&](c10d::Backend& backend) { backend.setTimeout(timeout); });
}

bool ProcessGroupGeocomm::supportsCoalescing() const {
  if (spans_sites()) return false;
  const auto cuda = inner_.find(at::kCUDA);
  return cuda != inner_.end() && cuda->second.pre->supportsCoalescing();
}

// Both must work even where supportsCoalescing() is false: torch calls them all the same, and a
// startCoalescing() that throws would make it record later collectives and never run them.
void ProcessGroupGeocomm::startCoalescing() {
  if (supportsCoalescing()) {
    inner(at::Device(at::kCUDA)).startCoalescing();
    return;
  }
  require_own_process(mark_);
  std::lock_guard lock(mutex_);
  coalescing_ = true;
  coalesced_.clear();
}

WorkPtr ProcessGroupGeocomm::endCoalescing() {
  if (supportsCoalescing()) return inner(at::Device(at::kCUDA)).endCoalescing();
  require_own_process(mark_);
  std::vector<WorkPtr> works;
  {
    std::lock_guard lock(mutex_);
    coalescing_ = false;
    works.swap(coalesced_);
  }
  if (works.size() == 1) return works.front();
  Tensors outputs;
  for (const auto& work : works) {
    if (dynamic_cast<GeoWork*>(work.get()) == nullptr) continue;
    for (const auto& tensor : work->result()) outputs.push_back(tensor);
  }
  return join_works(getRank(), c10d::OpType::COALESCED, "geocomm:coalesced", std::move(works),
                    std::move(outputs), wan_ ? wan_->exposed() : std::make_shared<ExposedTime>(0));
}

WorkPtr ProcessGroupGeocomm::track(WorkPtr work) {
  std::lock_guard lock(mutex_);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

WorkPtr ProcessGroupGeocomm::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  if (!spans_sites()) return track(inner(tensors.front().device()).broadcast(tensors, options));
  return track(wan_->broadcast(single(tensors, "broadcast"), static_cast<int>(options.rootRank),
                               timeout_or_default(options.timeout)));
}

WorkPtr ProcessGroupGeocomm::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (!spans_sites()) return track(inner(tensors.front().device()).allreduce(tensors, options));
  if (tensors.size() == 1 && tensors.front().is_sparse()) return allreduce_sparse(tensors, options);
  return track(
      wan_->all_reduce(single(tensors, "all_reduce"), options.reduceOp, timeout_or_default(options.timeout)));
}

std::pair<std::uint64_t, std::uint64_t> ProcessGroupGeocomm::encoded_range(std::uint64_t elements,
                                                                           at::ScalarType dtype) const {
  if (!core::is_compressible(moved_dtype(dtype))) {
    throw_status(StatusCode::Unsupported,
                 core::str("all_reduce_compressed takes tensors of float32, float16 or bfloat16, not of ",
                           c10::toString(dtype)));
  }
  if (!spans_sites()) return {0, 0};
  const auto range = wan_->encoded_range(elements);
  return {range.begin, range.end};
}

WorkPtr ProcessGroupGeocomm::all_reduce_compressed(const at::Tensor& tensor, const std::string& codec,
                                                   const std::optional<at::Tensor>& residual, bool average,
                                                   double decay, const std::optional<at::Tensor>& next,
                                                   const std::optional<at::Tensor>& scale) {
  Tensors tensors{tensor};
  single(tensors, "all_reduce_compressed");
  const auto spec = value_or_throw(codec::CodecSpec::parse(codec));
  const auto [start, stop] = encoded_range(static_cast<std::uint64_t>(tensor.numel()), tensor.scalar_type());
  if (!std::isfinite(decay)) throw_status(StatusCode::InvalidArgument, "decay must be finite");
  for (const auto& [name, values] :
       {std::pair{"residual", residual}, std::pair{"next_residual", next}, std::pair{"scale", scale}}) {
    if (!values) continue;
    if (values->scalar_type() != at::kFloat || values->device() != tensor.device() || values->dim() != 1 ||
        !is_flat_view(*values) || static_cast<std::uint64_t>(values->numel()) != stop - start) {
      throw_status(
          StatusCode::InvalidArgument,
          core::str(name, " must be a contiguous one-dimensional float32 tensor of ", stop - start,
                    " elements on ", tensor.device().str(), " (encoded_range()), got ", values->numel(),
                    " of ", c10::toString(values->scalar_type()), " on ", values->device().str()));
    }
  }
  if ((next || scale) && !residual) {
    throw_status(StatusCode::InvalidArgument, "next_residual or scale without residual");
  }
  if (next && next->numel() > 0 && next->is_alias_of(*residual)) {
    throw_status(StatusCode::InvalidArgument, "next_residual must not share memory with residual");
  }
  if (spans_sites()) {
    return track(
        wan_->all_reduce_compressed(tensor, spec, residual, next, scale, average, decay, options_->timeout));
  }
  auto feedback = std::make_shared<CallerFeedback>(spec, static_cast<float>(decay), residual, next);
  feedback->commit();
  if (average) tensors.front().div_(getSize());  // Gloo has no mean
  auto work = inner(tensor.device()).allreduce(tensors, c10d::AllreduceOptions{});
  return track(c10::make_intrusive<FeedbackWork>(std::move(work), std::move(feedback)));
}

WorkPtr ProcessGroupGeocomm::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (!spans_sites()) return track(inner(tensors.front().device()).allreduce_sparse(tensors, options));
  if (tensors.size() != 1 || !tensors.front().is_sparse()) {
    throw_status(StatusCode::InvalidArgument, "allreduce_sparse takes one sparse COO tensor per rank");
  }
  if (options.reduceOp != c10d::ReduceOp::SUM) {
    throw_status(StatusCode::Unsupported, "all_reduce of sparse tensors takes ReduceOp.SUM only");
  }
  return track(wan_->all_reduce_sparse(tensors.front(), timeout_or_default(options.timeout)));
}

WorkPtr ProcessGroupGeocomm::allreduce_coalesced(Tensors& tensors,
                                                 const c10d::AllreduceCoalescedOptions& options) {
  if (!spans_sites()) return track(inner(tensors.front().device()).allreduce_coalesced(tensors, options));
  for (const auto& tensor : tensors) single({tensor}, "all_reduce_coalesced");
  return track(wan_->all_reduce_coalesced(tensors, options.reduceOp, timeout_or_default(options.timeout)));
}

WorkPtr ProcessGroupGeocomm::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  if (!spans_sites()) return track(inner(tensors.front().device()).reduce(tensors, options));
  return track(wan_->reduce(single(tensors, "reduce"), options.reduceOp, static_cast<int>(options.rootRank),
                            timeout_or_default(options.timeout)));
}

WorkPtr ProcessGroupGeocomm::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) {
  if (!spans_sites()) return track(inner(inputs.front().device()).allgather(outputs, inputs, options));
  return track(wan_->all_gather(single_list(outputs, true, "all_gather"), single(inputs, "all_gather"),
                                timeout_or_default(options.timeout)));
}

WorkPtr ProcessGroupGeocomm::_allgather_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::AllgatherOptions& options) {
  if (!spans_sites()) return track(inner(input.device())._allgather_base(output, input, options));
  return track(wan_->all_gather({output}, input, timeout_or_default(options.timeout)));
}

WorkPtr ProcessGroupGeocomm::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  if (!spans_sites())
    return track(inner(inputs.front().device()).allgather_coalesced(outputs, inputs, options));
  // outputs[rank][i] is where rank's inputs[i] goes.
  std::vector<WorkPtr> works;
  Tensors all;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors column;
    for (const auto& row : outputs) {
      if (row.size() != inputs.size()) {
        throw_status(StatusCode::InvalidArgument,
                     "all_gather_coalesced: every output list needs one tensor per input");
      }
      column.push_back(row[i]);
    }
    all.insert(all.end(), column.begin(), column.end());
    works.push_back(wan_->all_gather(column, inputs[i], timeout_or_default(options.timeout)));
  }
  return track(join_works(getRank(), c10d::OpType::ALLGATHER_COALESCED, "geocomm:all_gather_coalesced",
                          std::move(works), std::move(all), wan_->exposed()));
}

WorkPtr ProcessGroupGeocomm::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                             const c10d::AllgatherOptions& options) {
  if (!spans_sites())
    return track(inner(inputs.front().device()).allgather_into_tensor_coalesced(outputs, inputs, options));
  std::vector<WorkPtr> works;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(wan_->all_gather({outputs.at(i)}, inputs[i], timeout_or_default(options.timeout)));
  }
  if (works.size() == 1) return track(works.front());
  return track(join_works(getRank(), c10d::OpType::ALLGATHER_COALESCED, "geocomm:all_gather_coalesced",
                          std::move(works), outputs, wan_->exposed()));
}

WorkPtr ProcessGroupGeocomm::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::GatherOptions& options) {
  if (!spans_sites()) return track(inner(inputs.front().device()).gather(outputs, inputs, options));
  const auto root = static_cast<int>(options.rootRank);
  return track(wan_->gather(single_list(outputs, root == getRank(), "gather"), single(inputs, "gather"), root,
                            timeout_or_default(options.timeout)));
}

WorkPtr ProcessGroupGeocomm::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                     const c10d::ScatterOptions& options) {
  if (!spans_sites()) return track(inner(outputs.front().device()).scatter(outputs, inputs, options));
  const auto root = static_cast<int>(options.rootRank);
  return track(wan_->scatter(single(outputs, "scatter"), single_list(inputs, root == getRank(), "scatter"),
                             root, timeout_or_default(options.timeout)));
}

WorkPtr ProcessGroupGeocomm::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                            const c10d::ReduceScatterOptions& options) {
  if (!spans_sites()) return track(inner(outputs.front().device()).reduce_scatter(outputs, inputs, options));
  return track(wan_->reduce_scatter(single(outputs, "reduce_scatter"),
                                    single_list(inputs, true, "reduce_scatter"), options.reduceOp,
                                    timeout_or_default(options.timeout)));
}

WorkPtr ProcessGroupGeocomm::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::ReduceScatterOptions& options) {
  if (!spans_sites()) return track(inner(output.device())._reduce_scatter_base(output, input, options));
  return track(wan_->reduce_scatter(output, {input}, options.reduceOp, timeout_or_default(options.timeout)));
}

WorkPtr ProcessGroupGeocomm::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                             const c10d::ReduceScatterOptions& options) {
  if (!spans_sites())
    return track(inner(outputs.front().device()).reduce_scatter_tensor_coalesced(outputs, inputs, options));
  std::vector<WorkPtr> works;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    works.push_back(wan_->reduce_scatter(outputs[i], {inputs.at(i)}, options.reduceOp,
                                         timeout_or_default(options.timeout)));
  }
  if (works.size() == 1) return track(works.front());
  return track(join_works(getRank(), c10d::OpType::REDUCE_SCATTER, "geocomm:reduce_scatter_coalesced",
                          std::move(works), outputs, wan_->exposed()));
}

WorkPtr ProcessGroupGeocomm::alltoall_base(at::Tensor& output, at::Tensor& input,
                                           std::vector<int64_t>& output_splits,
                                           std::vector<int64_t>& input_splits,
                                           const c10d::AllToAllOptions& options) {
  if (!spans_sites())
    return track(inner(output.device()).alltoall_base(output, input, output_splits, input_splits, options));
  return track(wan_->all_to_all(split_rows(output, output_splits, getSize(), "output"),
                                split_rows(input, input_splits, getSize(), "input"),
                                timeout_or_default(options.timeout)));
}

WorkPtr ProcessGroupGeocomm::alltoall(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllToAllOptions& options) {
  if (!spans_sites()) return track(inner(inputs.front().device()).alltoall(outputs, inputs, options));
  return track(wan_->all_to_all(outputs, inputs, timeout_or_default(options.timeout)));
}

void ProcessGroupGeocomm::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  if (!spans_sites()) {
    inner(at::Device(at::kCPU)).monitoredBarrier(options, wait_all_ranks);
    return;
  }
  if (const auto work = barrier(options)) work->wait();
}

WorkPtr ProcessGroupGeocomm::send(Tensors& tensors, int peer, int tag) {
  if (!spans_sites()) return track(inner(tensors.front().device()).send(tensors, peer, tag));
  return track(wan_->send(single(tensors, "send"), peer, tag, options_->timeout));
}

WorkPtr ProcessGroupGeocomm::recv(Tensors& tensors, int peer, int tag) {
  if (!spans_sites()) return track(inner(tensors.front().device()).recv(tensors, peer, tag));
  return track(wan_->recv(single(tensors, "recv"), peer, tag, options_->timeout));
}

WorkPtr ProcessGroupGeocomm::recvAnysource(Tensors& tensors, int tag) {
  if (!spans_sites()) return track(inner(tensors.front().device()).recvAnysource(tensors, tag));
  throw_status(StatusCode::Unsupported,
               "recv(src=None) does not work in a group that spans sites; name the source rank");
}

WorkPtr ProcessGroupGeocomm::barrier(const c10d::BarrierOptions& options) {
  const at::Device device =
      options.device && inner_.contains(options.device->type()) ? *options.device : at::Device(at::kCPU);
  if (!spans_sites()) return track(inner(device).barrier(options));
  return track(wan_->barrier(device, timeout_or_default(options.timeout)));
}

uint64_t ProcessGroupGeocomm::getSequenceNumberForGroup() {
  return wan_ ? wan_->sequence() : 0;
}

void ProcessGroupGeocomm::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  int index = 0;
  for_each_inner([&](c10d::Backend& backend) { backend.setGroupUid(core::str(uid, "/inner", index++)); });
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupGeocomm::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  // The store's prefix may differ between ranks (a hash of names that do): the parent's own store is used
  // instead, and this one only tells a new split from the same one for another device type.
  require_own_process(mark_);
  if (!split_) throw_status(StatusCode::Unsupported, "this process group cannot be split");
  {
    std::lock_guard lock(mutex_);
    if (store && store == split_store_) return split_child_;
  }
  auto child = split_(c10::intrusive_ptr<ProcessGroupGeocomm>::reclaim_copy(this), ranks, options);
  std::lock_guard lock(mutex_);
  split_store_ = store;
  split_child_ = child;
  return child;
}

c10d::ErrorType ProcessGroupGeocomm::getError() {
  if (!mark_.is_here()) return c10d::ErrorType::COMM_ERROR;
  if (!wan_) return c10d::ErrorType::SUCCESS;
  switch (wan_->failure_code()) {
    case StatusCode::Ok:
      return c10d::ErrorType::SUCCESS;
    case StatusCode::Timeout:
      return c10d::ErrorType::TIMEOUT;
    case StatusCode::PeerLost:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupGeocomm::abort() {
  if (!mark_.is_here()) return;
  if (wan_) wan_->abort(core::Status(StatusCode::Aborted, "the process group was aborted"));
  for_each_inner([](c10d::Backend& backend) {
    try {
      backend.abort();
    } catch (const std::exception& e) {  // not every inner backend can
      core::log(core::LogLevel::Debug, "abort inside the site: ", e.what());
    }
  });
}

bool ProcessGroupGeocomm::closed() const {
  if (!mark_.is_here()) return true;
  std::lock_guard lock(mutex_);
  return closed_;
}

void ProcessGroupGeocomm::shutdown() {
  if (!mark_.is_here()) return;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  if (wan_) {
    if (!wan_->has_failed() && !wan_->wait_idle(core::Deadline::after(kShutdownGrace))) {
      wan_->abort(core::Status(StatusCode::Aborted, "the process group was shut down during an operation"));
    }
    wan_->leave();
  }
  if (on_shutdown_) on_shutdown_();
  for_each_inner([](c10d::Backend& backend) { backend.shutdown(); });
  if (process_) (void)process_->release();
  BackendPtr child;
  std::lock_guard lock(mutex_);
  split_store_.reset();
  child.swap(split_child_);
}

}  // namespace geocomm::binding
