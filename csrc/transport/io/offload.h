// Offload: work of one owner on the IO thread that another thread does for it, one piece at a time, while the
// IO thread serves others.
#pragma once

#include <memory>

#include "core/executor.h"
#include "transport/io/io_loop.h"

namespace geocomm::transport {

// The IO thread's. The threads end before the loop does.
class Offload {
 public:
  Offload(core::ThreadPool& threads, IoLoop& loop) : threads_(threads), loop_(loop) {}
  ~Offload() { cancel(); }
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  bool is_under_way() const { return piece_ != nullptr; }
  // `work` on one of the threads, then `then` on the IO thread. Precondition: !is_under_way().
  void begin(core::Task work, core::Task then);
  // Work that has begun is waited for, so it must not wait for the IO thread. `then` is not called.
  void cancel();

 private:
  struct Piece;

  core::ThreadPool& threads_;
  IoLoop& loop_;
  std::shared_ptr<Piece> piece_;
};

}  // namespace geocomm::transport
