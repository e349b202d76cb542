#include "binding/module/reconfigurable_group.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

#include <utility>

#include "binding/torch/python_thread.h"
#include "core/log.h"

namespace geocomm::binding {

using core::StatusCode;

ReconfigurableGroup::ReconfigurableGroup(int rank, int size, Milliseconds timeout, HandleFunction handle,
                                         ReconfigureFunction reconfigure, ShutdownFunction on_shutdown)
    : GroupOperations(rank, size, timeout, std::move(on_shutdown)),
      handle_(std::move(handle)),
      reconfigure_(std::move(reconfigure)) {}

ReconfigurableGroup::~ReconfigurableGroup() {
  const GilRelease released;  // as ~ProcessGroupGeocomm
  on_shutdown_ = nullptr;     // the interpreter may be gone
  current_.reset();
}

ReconfigurableGroup::Current ReconfigurableGroup::current() const {
  std::lock_guard lock(mutex_);
  return current_;
}

ReconfigurableGroup::Current ReconfigurableGroup::members() {
  require_own_process(mark_);
  Current now = current();
  if (!now) {
    throw_status(StatusCode::Aborted,
                 "this process group has no members: they meet in reconfigure(), before the first operation "
                 "and again after one that failed");
  }
  return now;
}

void ReconfigurableGroup::adopt(Current next) {
  next->setGroupUid(getGroupUid());
  std::lock_guard lock(mutex_);
  rank_ = next->getRank();
  size_ = next->getSize();
  current_ = std::move(next);
}

void ReconfigurableGroup::leave() {
  Current before;
  {
    std::lock_guard lock(mutex_);
    before.swap(current_);
  }
  if (before) before->shutdown();
}

c10d::ReconfigureHandle ReconfigurableGroup::get_reconfigure_handle() const {
  require_own_process(mark_);
  return handle_();
}

WorkPtr ReconfigurableGroup::reconfigure(const c10d::ReconfigureOptions& options) {
  require_own_process(mark_);
  reconfigure_(*this, options);
  auto done = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  done->markCompleted(c10::IValue(Tensors()));
  return c10d::Work::create_from_future(done);
}

void ReconfigurableGroup::setTimeout(Milliseconds timeout) {
  options_->timeout = timeout;
  if (const Current now = current()) now->setTimeout(timeout);
}

void ReconfigurableGroup::startCoalescing() {
  members()->startCoalescing();
}
WorkPtr ReconfigurableGroup::endCoalescing() {
  return members()->endCoalescing();
}

uint64_t ReconfigurableGroup::getSequenceNumberForGroup() {
  const Current now = current();
  return now ? now->getSequenceNumberForGroup() : 0;
}

void ReconfigurableGroup::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  if (const Current now = current()) now->setGroupUid(uid);
}

c10d::ErrorType ReconfigurableGroup::getError() {
  const Current now = current();
  return now ? now->getError() : c10d::ErrorType::SUCCESS;
}

void ReconfigurableGroup::abort() {
  if (const Current now = current()) now->abort();
}

void ReconfigurableGroup::shutdown() {
  if (!mark_.is_here()) return;
  leave();
  if (auto ended = std::exchange(on_shutdown_, nullptr)) ended();
}

}  // namespace geocomm::binding

#endif
