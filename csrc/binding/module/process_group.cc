#include "binding/module/process_group.h"

#include <set>
#include <utility>

#include "binding/torch/python_thread.h"
#include "core/log.h"
#include "core/str.h"

namespace geocomm::binding {

using core::StatusCode;

namespace {

// What shutdown() gives operations in flight before it fails them.
constexpr std::chrono::seconds kShutdownGrace{5};

}  // namespace

ProcessGroupGeocomm::ProcessGroupGeocomm(int rank, int size, Milliseconds timeout, InnerBackends inner,
                                         std::shared_ptr<WanCollectives> wan,
                                         std::shared_ptr<ProcessResources> process, SplitFunction split,
                                         ShutdownFunction on_shutdown)
    : GroupOperations(rank, size, timeout, std::move(on_shutdown)),
      inner_(std::move(inner)),
      wan_(std::move(wan)),
      calls_(wan_ ? std::shared_ptr<Collectives>(wan_.share())
                  : std::make_shared<SiteCollectives>(rank, size, inner_)),
      process_(std::move(process)),
      split_(std::move(split)) {}

ProcessGroupGeocomm::~ProcessGroupGeocomm() {
  // TORCH_DISTRIBUTED_DEBUG=DETAIL in torch 2.11 never forwards shutdown(): teardown must work from here
  // alone. Python frees the object with the GIL held, which other threads may be waiting for: users'
  // callbacks, and those of Gloo, which its destructor joins while they free tensors.
  const GilRelease released;
  on_shutdown_ = nullptr;  // the interpreter may be gone
  if (!mark_.is_here()) {
    core::leak(std::move(inner_));  // Gloo would wait for threads that are not here
    if (!wan_) core::leak(calls_.take());
    return;
  }
  try {
    shutdown();
  } catch (const std::exception& e) {
    core::log(core::LogLevel::Warning, "closing a process group: ", e.what());
  }
  coalesced_.clear();
  calls_.take();
  wan_.take();
  inner_.clear();
}

c10::intrusive_ptr<ProcessGroupGeocomm> ProcessGroupGeocomm::members() {
  return c10::intrusive_ptr<ProcessGroupGeocomm>::reclaim_copy(this);
}

void ProcessGroupGeocomm::note_issued(const WorkPtr& work) {
  issued_.fetch_add(1);
  std::lock_guard lock(mutex_);
  if (coalescing_) coalesced_.push_back(work);
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
    if (!work) continue;
    for (const auto& tensor : work->result()) outputs.push_back(tensor);
  }
  return join_works(getRank(), c10d::OpType::COALESCED, "geocomm:coalesced", std::move(works),
                    std::move(outputs), wan_ ? wan_->exposed() : std::make_shared<ExposedTime>());
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
  auto child = split_(members(), ranks, options);
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
