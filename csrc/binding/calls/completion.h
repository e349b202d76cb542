// Who is told that operations have succeeded: torch's flight recorder, from 2.15 on (c10d's completion
// hooks).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "binding/torch/torch_prelude.h"

namespace geocomm::binding {

// Of a group. Thread-safe; hooks are called without its lock.
class CompletionHooks {
 public:
  using Hook = std::function<void(std::uint64_t key)>;

  void add(std::int64_t id, Hook hook) {
    std::lock_guard lock(mutex_);
    hooks_[id] = std::move(hook);
  }
  void remove(std::int64_t id) {
    std::lock_guard lock(mutex_);
    hooks_.erase(id);
  }
  void tell(std::uint64_t key) const {
    std::vector<Hook> hooks;
    {
      std::lock_guard lock(mutex_);
      for (const auto& [id, hook] : hooks_) hooks.push_back(hook);
    }
    for (const auto& hook : hooks) hook(key);
  }

 private:
  mutable std::mutex mutex_;  // guards hooks_
  std::map<std::int64_t, Hook> hooks_;
};

// The success of one operation, of which the hooks of its group are told once. Thread-safe; may outlive its
// Work.
class Completion {
 public:
  std::uint64_t key() const { return key_; }
  // Once, before the Work is handed out. The operation may have succeeded by then.
  void tell(std::shared_ptr<const CompletionHooks> hooks) {
    std::unique_lock lock(mutex_);
    hooks_ = std::move(hooks);
    tell_if_succeeded(lock);
  }
  void succeeded() {
    std::unique_lock lock(mutex_);
    succeeded_ = true;
    tell_if_succeeded(lock);
  }

 private:
  void tell_if_succeeded(std::unique_lock<std::mutex>& lock) {
    if (!succeeded_ || !hooks_) return;
    const auto hooks = std::exchange(hooks_, nullptr);
    lock.unlock();
    hooks->tell(key_);
  }
  static std::uint64_t next_key() {
    static std::atomic<std::uint64_t> next{1};
    return next.fetch_add(1);
  }

  const std::uint64_t key_ = next_key();
  std::mutex mutex_;  // guards all below
  std::shared_ptr<const CompletionHooks> hooks_;
  bool succeeded_ = false;
};

// A Work that tells of its success, before wait() returns.
class Completing : public c10d::Work {
 public:
  using Work::Work;
#if GEOCOMM_TORCH_SINCE(15)
  // Never used again, unlike the address that is c10d's own.
  std::uint64_t getCompletionKey() const override { return completion_->key(); }
#endif
  Completion& completion() const { return *completion_; }

 protected:
  const std::shared_ptr<Completion> completion_ = std::make_shared<Completion>();
};

}  // namespace geocomm::binding
