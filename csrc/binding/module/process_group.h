// ProcessGroupGeocomm: the c10d backend. A group inside one site goes through SiteCollectives, one that spans
// sites through WanCollectives. Method names are PyTorch's.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "binding/module/group_operations.h"
#include "binding/module/process_resources.h"

namespace geocomm::binding {

// A share of a group's Collectives. `->` throws Aborted in a forked child, since
// threads and connections are the parent's.
template <typename Calls>
class Own {
 public:
  explicit Own(std::shared_ptr<Calls> calls) : calls_(std::move(calls)) {}

  explicit operator bool() const { return calls_ != nullptr; }
  Calls* operator->() const {
    require_own_process(mark_);
    return calls_.get();
  }
  Calls& operator*() const { return *operator->(); }
  std::shared_ptr<Calls> share() const { return calls_; }
  std::shared_ptr<Calls> take() { return std::exchange(calls_, nullptr); }

 private:
  std::shared_ptr<Calls> calls_;
  core::ProcessMark mark_;
};

// In a forked child every call throws Aborted, but for those that end a group: these leave it to the parent.
class ProcessGroupGeocomm : public GroupOperations {
 public:
  // Makes the backend of a sub-group, or null for ranks that are not in it. Called without the GIL.
  using SplitFunction = std::function<BackendPtr(const c10::intrusive_ptr<ProcessGroupGeocomm>& parent,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<c10d::Backend::Options>& options)>;

  // `wan` is null where all ranks are at one site; then `inner` serves everything. `process` must have been
  // acquired for this group, which releases it.
  ProcessGroupGeocomm(int rank, int size, Milliseconds timeout, InnerBackends inner,
                      std::shared_ptr<WanCollectives> wan, std::shared_ptr<ProcessResources> process,
                      SplitFunction split, ShutdownFunction on_shutdown);
  ~ProcessGroupGeocomm() override;

  bool supportsSplitting() const override { return static_cast<bool>(split_); }
  bool supportsCoalescing() const override;
  void setTimeout(Milliseconds timeout) override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // Operations so far, messages included, as Gloo counts them. ProcessGroup itself refuses them to every
  // backend from outside of torch; Backend's own methods and DETAIL debugging call them.
  uint64_t getSequenceNumberForGroup() override { return issued_.load(); }
  void setGroupUid(const std::string&) override;
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>&,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>&) override;
  c10d::ErrorType getError() override;
  // Both are idempotent and never hang: abort() ends everything at once, shutdown() first gives what is in
  // flight a moment.
  void abort() override;
  void shutdown() override;

  bool spans_sites() const { return static_cast<bool>(wan_); }
  // Whether shutdown() was called, or the group is that of a parent process.
  bool closed() const;
  // Only of a group that spans sites.
  const Own<WanCollectives>& wan() const { return wan_; }
  const Own<Collectives>& calls() const { return calls_; }
  bool has_inner(at::DeviceType device) const { return inner_.contains(device); }
  // Throws Unsupported where there is none for the device.
  c10d::Backend& inner(const at::Device& device) const;
  // Counts an operation, and keeps it for endCoalescing().
  void note_issued(const WorkPtr& work);

 private:
  c10::intrusive_ptr<ProcessGroupGeocomm> members() override;
  void for_each_inner(const std::function<void(c10d::Backend&)>& visit) const;

  InnerBackends inner_;  // changed by the destructor only, as are wan_, calls_ and on_shutdown_
  Own<WanCollectives> wan_;
  Own<Collectives> calls_;  // where there are several sites, wan_
  const std::shared_ptr<ProcessResources> process_;
  const SplitFunction split_;
  std::atomic<std::uint64_t> issued_{0};
  mutable std::mutex mutex_;  // guards coalescing_, coalesced_, closed_, split_store_, split_child_
  bool coalescing_ = false;
  bool closed_ = false;
  std::vector<WorkPtr> coalesced_;
  // The last split: torch asks once per device type, with the same store.
  c10::intrusive_ptr<c10d::Store> split_store_;
  BackendPtr split_child_;
};

}  // namespace geocomm::binding
