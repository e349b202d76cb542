// The event loop of the IO thread: sockets (level-triggered epoll), timers, tasks from other threads. Sleeps
// while none of them has anything to do; while it sleeps, another thread may run it (try_run()).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/deadline.h"
#include "core/fork.h"
#include "core/status.h"
#include "transport/io/socket.h"
#include "transport/io/timers.h"

namespace geocomm::transport {

class IoHandler {
 public:
  virtual ~IoHandler() = default;
  // `events` as epoll reports them. The handler may remove itself and others from the loop.
  virtual void on_ready(std::uint32_t events) = 0;
};

// Tasks, timers and handlers must not throw, on whatever thread they run: that ends the process.
//
// post(), run(), try_run(), stop() and in_loop() are for any thread, all else for the IO thread (or before
// start()), which means: for the thread that runs the loop now. In a forked child, of a loop of its
// parent: only the destructor.
class IoLoop final : public Timers {
 public:
  using HandlerId = std::uint64_t;

  static core::Result<std::shared_ptr<IoLoop>> create();
  ~IoLoop() override;
  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;

  // Runs the loop on a thread of its own until stop(). Fails where the system allows no more threads.
  core::Status start();
  // Runs the tasks posted so far, ends the thread and joins it. Tasks posted later are dropped. False if the
  // thread has not ended by the deadline, since a task or a handler does not return: then the destructor
  // waits for it. On the IO thread itself it only asks for the end.
  bool stop(core::Deadline deadline);
  // Whether the calling thread runs the loop.
  bool in_loop() const { return std::this_thread::get_id() == runner_.load(std::memory_order_relaxed); }
  // False if the loop has stopped.
  bool post(Task task);
  // Runs `task` on the IO thread and waits for it; at once when already there. False if the loop has stopped,
  // or the task has not ended by the deadline. It may still run then, so it owns what it uses.
  bool run(Task task, core::Deadline deadline);
  // Runs `task` on the calling thread, as if that were the IO thread, if the IO thread sleeps: two switches
  // of threads fewer than post(). The caller holds no lock that whatever `task` calls may take. False, and
  // nothing was run, if the IO thread is busy or is the caller itself, or if the loop does not run.
  bool try_run(const Task& task);

  // Watches `fd` (which stays the caller's) until remove(). Fails when the kernel has no room.
  core::Result<HandlerId> add(int fd, IoHandler* handler, std::uint32_t events);
  void modify(HandlerId id, std::uint32_t events);
  // Before the descriptor is closed. No event reaches the handler any more, not even one already reported.
  void remove(HandlerId id);
  // Reports `events` to the handler in the next round, whatever the descriptor says then.
  void again(HandlerId id, std::uint32_t events);

  Time now() const override { return Clock::now(); }

  static constexpr std::size_t kScratchBytes = 64 * 1024;
  // Memory for bytes that are read only to be thrown away.
  std::byte* scratch() { return scratch_.data(); }

 private:
  struct Watched {
    int fd;
    IoHandler* handler;
  };

  IoLoop(Fd epoll, Fd wake);
  void ask_to_stop();
  void loop();
  void dispatch(HandlerId id, std::uint32_t events);
  void run_again();
  bool run_tasks();
  int next_timeout_ms() const;

  Fd epoll_;
  Fd wake_;  // eventfd
  std::thread thread_;

  const core::ProcessMark mark_;
  std::mutex mutex_;  // guards tasks_, stopping_, stopped_
  std::condition_variable changed_;
  std::vector<Task> tasks_;
  bool stopping_ = false;
  bool stopped_ = false;  // no task runs any more

  // Others may run the loop so often that the IO thread would not get it back by itself.
  std::atomic<bool> wanted_back_{false};
  std::mutex loop_mutex_;                  // guards all below; the IO thread's but while it waits for events
  std::atomic<std::thread::id> runner_{};  // the thread that runs the loop
  bool running_ = false;
  std::unordered_map<HandlerId, Watched> watched_;
  std::vector<std::pair<HandlerId, std::uint32_t>> again_;
  HandlerId next_handler_ = 1;
  std::vector<std::byte> scratch_ = std::vector<std::byte>(kScratchBytes);
};

}  // namespace geocomm::transport
