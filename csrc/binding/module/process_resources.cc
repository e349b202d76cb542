#include "binding/module/process_resources.h"

#include <malloc.h>

#include <utility>

#include "binding/operation/executors.h"
#include "binding/torch/comm_error.h"
#include "binding/torch/python_thread.h"
#include "core/log.h"

namespace geocomm::binding {

namespace {

// What peers and callbacks get to end their part.
constexpr std::chrono::seconds kEndGrace{5};

}  // namespace

std::shared_ptr<ProcessResources> ProcessResources::create(std::unique_ptr<transport::Endpoint> endpoint,
                                                           std::size_t threads) {
  throw_if_error(blocking_executor().keep_one());  // for those before they end
  std::shared_ptr<ProcessResources> made(new ProcessResources(std::move(endpoint), threads), &end);
  throw_if_error(made->pool.why_none());
  return made;
}

void ProcessResources::end(ProcessResources* last) {
  if (last->is_inherited()) return;
  // With a task, which would wait for itself.
  if (last->pool.is_worker()) return blocking_executor().post([last] { end(last); });
  const GilRelease released;  // the IO thread may be about to free a tensor
  (void)last->endpoint->shutdown(core::Deadline::after(kEndGrace));  // if nobody has
  if (!last->endpoint->is_over()) return;
  delete last;
  blocking_executor().keep_no_more();
#ifdef __GLIBC__
  ::malloc_trim(0);  // it keeps the most of the buffers' memory otherwise
#endif
}

bool ProcessResources::acquire() {
  if (is_inherited()) return false;
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  ++users_;
  return true;
}

bool ProcessResources::release(std::chrono::milliseconds patience) {
  if (is_inherited()) return true;
  {
    std::lock_guard lock(mutex_);
    if (--users_ > 0) return false;
    closed_ = true;
  }
  const auto status = endpoint->shutdown(core::Deadline::after(patience));
  if (!status.is_ok()) core::log(core::LogLevel::Info, "closing connections: ", status.to_string());
  return true;
}

}  // namespace geocomm::binding
