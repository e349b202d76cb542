#include "binding/wan_collectives.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "binding/wan_call.h"
#include "core/str.h"

namespace geocomm::binding {

using core::StatusCode;

namespace {

// Operations of a group that may be on the WAN at the same time; further ones wait in order.
constexpr std::size_t kMaxConcurrentExchanges = 16;

std::mutex g_error_mutex;  // guards g_error
std::optional<ErrorRecord> g_error;

}  // namespace

void record_error(const core::Status& status) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::lock_guard lock(g_error_mutex);
  g_error = ErrorRecord{status, std::chrono::duration<double>(now).count()};
}

bool last_error(ErrorRecord& record) {
  std::lock_guard lock(g_error_mutex);
  if (g_error) record = *g_error;
  return g_error.has_value();
}

core::GrowingExecutor& blocking_executor() {
  // Never destroyed: user callbacks may still run while the interpreter ends.
  static auto* executor = new core::GrowingExecutor("geocomm-op");
  return *executor;
}

WorkPtr join_works(int rank, c10d::OpType type, const char* title, std::vector<WorkPtr> works,
                   Tensors outputs, std::shared_ptr<ExposedTime> exposed) {
  auto joined =
      c10::make_intrusive<GeoWork>(rank, type, title, 0, Tensors{}, std::move(outputs), std::move(exposed));
  blocking_executor().submit([joined, works = std::move(works)]() mutable {
    std::exception_ptr error;
    for (auto& work : works) {
      try {
        if (work && dynamic_cast<GeoWork*>(work.get()) != nullptr) {
          const auto future = work->getFuture();  // not wait(): that would count as the user's waiting
          future->wait();
          if (future->hasError() && !error) error = future->exception_ptr();
        } else {
          finish_inner(work);
        }
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    works.clear();
    joined->complete(error);
  });
  return joined;
}

WanCollectives::WanCollectives(std::unique_ptr<collective::Exchange> exchange, InnerBackends inner,
                               bool preserve_inputs)
    : exchange_(std::move(exchange)),
      inner_(std::move(inner)),
      preserve_inputs_(preserve_inputs),
      pipeline_(blocking_executor(), kMaxConcurrentExchanges,
                [this](const std::exception_ptr& error) { mark_failed(status_of(error)); }) {}

BackendPtr WanCollectives::inner(const at::Device& device, bool post) const {
  const auto found = inner_.find(device.type());
  if (found == inner_.end()) {
    throw_status(StatusCode::Unsupported,
                 core::str("no backend inside the site for tensors on ", device.str(),
                           "; this process group serves CPU", inner_.contains(at::kCUDA) ? " and CUDA" : "",
                           " tensors"));
  }
  return post ? found->second.post : found->second.pre;
}

core::Status WanCollectives::failure() const {
  std::lock_guard lock(mutex_);
  if (failure_.is_ok()) return {};
  return core::Status(StatusCode::Aborted,
                      core::str("this process group failed earlier (", failure_.to_string(),
                                "); destroy it and make a new one"));
}

core::StatusCode WanCollectives::failure_code() const {
  std::lock_guard lock(mutex_);
  return failure_.code();
}

// After one failed operation the ranks no longer agree on what comes next, so the group is over.
void WanCollectives::mark_failed(const core::Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.is_ok()) return;
    failure_ = why;
  }
  exchange_->abort(core::Status(StatusCode::Aborted,
                                core::str("another operation of the group failed: ", why.to_string())));
}

void WanCollectives::abort(const core::Status& why) {
  mark_failed(why);
  pipeline_.fail(to_exception(why));
}

}  // namespace geocomm::binding
