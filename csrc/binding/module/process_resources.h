// ProcessResources: the endpoint, the codec pool and its buffers.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>

#include "core/buffer.h"
#include "core/executor.h"
#include "core/fork.h"
#include "transport/endpoint.h"

namespace geocomm::binding {

// What a process has once and all its groups share. Its endpoint closes when the last user is gone.
class ProcessResources {
 public:
  // Throws where the system allows no threads. What it made is leaked in a forked child, and where a callback
  // of an operation holds up the IO thread for ever.
  static std::shared_ptr<ProcessResources> create(std::unique_ptr<transport::Endpoint> endpoint,
                                                  std::size_t threads);

  // A process group, or Python while it makes one. False if the endpoint has closed, or is that of a parent
  // process: then a new one is needed.
  bool acquire();
  // Whether that was the last user: the endpoint has closed, after what was queued was sent, if that took no
  // longer than `patience`.
  bool release(std::chrono::milliseconds patience = std::chrono::seconds(5));
  bool is_inherited() const { return !mark_.is_here(); }

  // In this order: the endpoint's callbacks give tasks to the pool, and these take buffers.
  core::BufferPool buffers;
  core::ThreadPool pool;
  const std::unique_ptr<transport::Endpoint> endpoint;

 private:
  ProcessResources(std::unique_ptr<transport::Endpoint> e, std::size_t threads)
      : pool(threads, "geocomm-codec"), endpoint(std::move(e)) {}
  static void end(ProcessResources* last);

  const core::ProcessMark mark_;
  std::mutex mutex_;  // guards users_, closed_
  int users_ = 0;
  bool closed_ = false;
};

}  // namespace geocomm::binding
