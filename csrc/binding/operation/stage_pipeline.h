// StagePipeline: the order in which the collectives of one group run their three stages.
//
//   pre       inside the site, before the WAN   one after the other, in order of issue
//   exchange  over the WAN                      many at once, in any order
//   post      inside the site, after the WAN    one after the other, in order of issue
//
// Gloo and NCCL match operations by order of issue, and WAN exchanges end in any order: so the stages inside
// the site have a FIFO and an inner group each, and operation k+1's `pre` runs under operation k's exchange.
// An operation that has the pipeline to itself may go through all its stages on one thread of the executor.
// Knows nothing of torch.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>

#include "core/deadline.h"
#include "core/executor.h"
#include "core/status.h"

namespace geocomm::binding {

// One operation. Any of the three stages may be empty, and may throw; from `exchange` that is Internal.
// `done` runs exactly once, on a thread of the executor (never on one that makes progress: it runs user
// callbacks, which may wait for another collective), with the exception or nullptr. `to_exception` turns a
// failed exchange into what `done` gets.
struct StagedOperation {
  std::function<void()> pre;
  std::function<core::Status()> exchange;
  std::function<void()> post;
  std::function<std::exception_ptr(const core::Status&)> to_exception;
  std::function<void(std::exception_ptr)> done;
  // It may go through all its stages on one thread, which spares the time of waking others. Else the stages
  // inside the site are left to few threads: to each may belong a team of OpenMP's.
  bool may_keep_thread = false;
};

class StagePipeline {
 public:
  // `on_failure` is called once, with the first operation that failed, before its `done`: the group is then
  // broken. `executor` outlives the pipeline and its operations.
  StagePipeline(core::GrowingExecutor& executor, std::size_t max_concurrent_exchanges,
                std::function<void(std::exception_ptr)> on_failure);
  // Destroying it lets running stages end by themselves; does not wait.
  StagePipeline(const StagePipeline&) = delete;
  StagePipeline& operator=(const StagePipeline&) = delete;

  void submit(StagedOperation operation);
  // From now on every stage that has not begun is skipped and its operation done with `why`.
  void fail(std::exception_ptr why);
  // Whether all operations were done by the deadline.
  bool wait_idle(core::Deadline deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace geocomm::binding
