// Forked children. A child has a copy of its parent's memory, but none of its threads; a mutex that another
// thread held is locked in the child for ever. So whatever has threads, mutexes or connections belongs to the
// process that made it: a child neither uses nor frees it (it leaks), and makes its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "core/status.h"

namespace geocomm::core {

// How many forks lie between the process that loaded this library and this one.
std::uint64_t fork_depth();

// Remembers the process that made it.
class ProcessMark {
 public:
  // False in a child that was forked since.
  bool is_here() const { return depth_ == fork_depth(); }

 private:
  std::uint64_t depth_ = fork_depth();
};

// What a child gets that uses a process group of its parent.
Status inherited_by_fork();

// Lets go of `owner` without running its destructor's work: of what belongs to the parent.
template <typename Owner>
void leak(Owner&& owner) {
  (void)new std::remove_cvref_t<Owner>(std::forward<Owner>(owner));
}

// One object per process, made on first use and never destroyed, since threads may still use it at exit. For
// static storage.
template <typename T>
class PerProcess {
 public:
  // Thread-safe. `arguments` are those of the constructor, which may run more than once, and starts no
  // threads.
  template <typename... Arguments>
  T& get(const Arguments&... arguments) {
    Made* made = made_.load(std::memory_order_acquire);
    if (made != nullptr && made->mark.is_here()) return made->object;
    // Without a mutex, which a fork could leave locked.
    auto* fresh = new Made(made, arguments...);
    if (made_.compare_exchange_strong(made, fresh, std::memory_order_acq_rel)) return fresh->object;
    delete fresh;
    return made->object;
  }

 private:
  struct Made {
    template <typename... Arguments>
    explicit Made(Made* parents, const Arguments&... arguments) : object(arguments...), parents_(parents) {}
    ProcessMark mark;
    T object;
    Made* parents_;  // for leak checkers
  };
  std::atomic<Made*> made_{nullptr};
};

}  // namespace geocomm::core
