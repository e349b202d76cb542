#include "core/fork.h"

#include <pthread.h>

namespace geocomm::core {

namespace {

constinit std::atomic<std::uint64_t> g_depth{0};

// From the moment at which the library is loaded.
[[maybe_unused]] const int g_registered =
    ::pthread_atfork(nullptr, nullptr, [] { g_depth.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

std::uint64_t fork_depth() {
  return g_depth.load(std::memory_order_relaxed);
}

Status inherited_by_fork() {
  return {
      StatusCode::Aborted,
      "this process was forked from one with a geocomm process group, and the group stays with that one. Use "
      "collectives in the parent only (not in the workers of a DataLoader); or give the child a group of its "
      "own: "
      "destroy_process_group(), then init_process_group() in the child"};
}

}  // namespace geocomm::core
