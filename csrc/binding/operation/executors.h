// What all groups of a process run their operations on, and the last error of these. Of each a forked child
// has its own; all live as long as the process: the users' callbacks may still run while the interpreter
// ends.
#pragma once

#include <optional>

#include "core/deadline_timer.h"
#include "core/executor.h"
#include "core/status.h"

namespace geocomm::binding {

// Runs whatever may block: exchanges, stages inside the site, the users' callbacks. It is also where a user's
// tensors are let go: freeing one may take Python's lock, which no IO thread, and no thread that holds one of
// geocomm's locks, may wait for.
core::GrowingExecutor& blocking_executor();
// Deadlines of operations that may be waited for by nobody.
core::DeadlineTimer& deadline_timer();

// The last failed operation of this process, for geocomm.last_error().
struct ErrorRecord {
  core::Status status;
  double unix_time = 0;
};
void record_error(const core::Status& status);
std::optional<ErrorRecord> last_error();

}  // namespace geocomm::binding
