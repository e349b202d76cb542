#include "binding/operation/executors.h"

#include <chrono>
#include <mutex>

#include "core/fork.h"

namespace geocomm::binding {

namespace {

struct LastError {
  std::mutex mutex;  // guards record
  std::optional<ErrorRecord> record;
};
constinit core::PerProcess<LastError> g_last_error;
constinit core::PerProcess<core::GrowingExecutor> g_executor;
constinit core::PerProcess<core::DeadlineTimer> g_timer;

}  // namespace

core::GrowingExecutor& blocking_executor() {
  return g_executor.get("geocomm-op");
}

core::DeadlineTimer& deadline_timer() {
  return g_timer.get();
}

void record_error(const core::Status& status) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  LastError& last = g_last_error.get();
  std::lock_guard lock(last.mutex);
  last.record = ErrorRecord{status, std::chrono::duration<double>(now).count()};
}

std::optional<ErrorRecord> last_error() {
  LastError& last = g_last_error.get();
  std::lock_guard lock(last.mutex);
  return last.record;
}

}  // namespace geocomm::binding
