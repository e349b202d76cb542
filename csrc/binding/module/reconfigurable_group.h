// ReconfigurableGroup: the c10d backend of init_process_group(enable_reconfigure=True), whose ranks come and
// go. torch and its users keep this one object; every call goes to the ProcessGroupGeocomm of the ranks that
// are there now. Needs a torch whose backends may change their rank and size (2.14).
#pragma once

#include "binding/module/process_group.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

#include <functional>
#include <mutex>
#include <string>

namespace geocomm::binding {

// Operations may be issued from several threads, but not while the ranks change.
class ReconfigurableGroup : public GroupOperations {
 public:
  using Current = c10::intrusive_ptr<ProcessGroupGeocomm>;
  // What this process tells the others. Called without the GIL.
  using HandleFunction = std::function<std::string()>;
  // Calls leave() and adopt(); returns once all ranks have met. Called without the GIL.
  using ReconfigureFunction =
      std::function<void(ReconfigurableGroup& group, const c10d::ReconfigureOptions& options)>;

  ReconfigurableGroup(int rank, int size, Milliseconds timeout, HandleFunction handle,
                      ReconfigureFunction reconfigure, ShutdownFunction on_shutdown);
  ~ReconfigurableGroup() override;

  // From now on calls go to `next`, and this is its rank and size.
  void adopt(Current next);
  // The ranks of before are left: what is in flight gets a moment to end. Until adopt(), operations throw
  // Aborted. Nothing where nobody is there.
  void leave();
  // Null where there are none: before the first reconfigure(), and after a failed one.
  Current current() const;

  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  // Blocks until all have met; throws what went wrong. The Work is complete.
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override;

  // Parts of a group whose ranks change are not made.
  bool supportsSplitting() const override { return false; }
  bool supportsCoalescing() const override { return false; }
  void setTimeout(Milliseconds timeout) override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  uint64_t getSequenceNumberForGroup() override;
  void setGroupUid(const std::string&) override;
  c10d::ErrorType getError() override;
  // Ends what is in flight at once. reconfigure() still works.
  void abort() override;
  // For good.
  void shutdown() override;

 private:
  // Throws Aborted where nobody is there.
  Current members() override;

  const HandleFunction handle_;
  const ReconfigureFunction reconfigure_;
  mutable std::mutex mutex_;  // guards current_
  Current current_;
};

}  // namespace geocomm::binding

#endif
