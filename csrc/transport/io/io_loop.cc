#include "transport/io/io_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>
#include <utility>

#include "core/must_not_throw.h"
#include "core/thread.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {
constexpr IoLoop::HandlerId kWakeId = 0;
constexpr int kEventsPerWait = 64;
}  // namespace

Result<std::shared_ptr<IoLoop>> IoLoop::create() {
  Fd epoll = Fd::made_by([] { return ::epoll_create1(EPOLL_CLOEXEC); });
  Fd wake = Fd::made_by([] { return ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); });
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  if (!epoll.valid() || !wake.valid() || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return Status(StatusCode::Network, "cannot make an event loop (epoll, eventfd): check `ulimit -n`")
        .with_errno(errno);
  }
  return std::shared_ptr<IoLoop>(new IoLoop(std::move(epoll), std::move(wake)));
}

IoLoop::IoLoop(Fd epoll, Fd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}

IoLoop::~IoLoop() {
  if (!mark_.is_here()) {
    core::leak(std::move(thread_));
    return;
  }
  ask_to_stop();
  if (thread_.joinable()) thread_.join();
}

Status IoLoop::start() {
  GEOCOMM_ASSIGN_OR_RETURN(thread_, core::start_thread("geocomm-io", [this] { loop(); }));
  return Status::ok();
}

void IoLoop::ask_to_stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    if (!thread_.joinable()) stopped_ = true;
  }
  (void)::eventfd_write(wake_.get(), 1);
}

bool IoLoop::stop(core::Deadline deadline) {
  ask_to_stop();
  {
    std::unique_lock lock(mutex_);
    if (in_loop() || !changed_.wait_until(lock, deadline.when(), [this] { return stopped_; })) return false;
  }
  if (thread_.joinable()) thread_.join();
  std::vector<Task> dropped;
  std::lock_guard lock(mutex_);
  dropped.swap(tasks_);
  return true;
}

bool IoLoop::post(Task task) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return false;
    wake = tasks_.empty();
    tasks_.push_back(std::move(task));
  }
  if (wake && !in_loop()) (void)::eventfd_write(wake_.get(), 1);
  return true;
}

bool IoLoop::run(Task task, core::Deadline deadline) {
  if (in_loop()) {
    task();  // what it throws meets whoever lets this thread run the loop
    return true;
  }
  auto done = std::make_shared<std::promise<void>>();
  auto future = done->get_future();
  // A loop that stops drops the promise, which ends the wait as well.
  const bool posted = post([task = std::move(task), done = std::move(done)] {
    task();
    done->set_value();
  });
  return posted && future.wait_until(deadline.when()) == std::future_status::ready;
}

bool IoLoop::try_run(const Task& task) {
  if (in_loop() || wanted_back_.load(std::memory_order_relaxed)) return false;
  std::unique_lock running(loop_mutex_, std::try_to_lock);
  if (!running.owns_lock() || !running_) return false;
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    wake = tasks_.empty();  // else whoever posted the first one has woken the IO thread
  }
  const Time sleeps_until = next_timer().value_or(Time::max());
  runner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  core::must_not_throw("ended a round of the IO loop on the thread of a caller", task);
  runner_.store({}, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    wake &= !tasks_.empty();
  }
  wake |= !again_.empty() || next_timer().value_or(Time::max()) < sleeps_until;
  running.unlock();
  if (wake) (void)::eventfd_write(wake_.get(), 1);
  return true;
}

Result<IoLoop::HandlerId> IoLoop::add(int fd, IoHandler* handler, std::uint32_t events) {
  const HandlerId id = next_handler_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return Status(StatusCode::Network, "cannot watch a socket").with_errno(errno);
  }
  watched_.emplace(id, Watched{fd, handler});
  return id;
}

void IoLoop::modify(HandlerId id, std::uint32_t events) {
  const auto found = watched_.find(id);
  if (found == watched_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, found->second.fd, &event);
}

void IoLoop::remove(HandlerId id) {
  const auto found = watched_.find(id);
  if (found == watched_.end()) return;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.fd, nullptr);
  watched_.erase(found);
}

void IoLoop::again(HandlerId id, std::uint32_t events) {
  again_.emplace_back(id, events);
}

void IoLoop::dispatch(HandlerId id, std::uint32_t events) {
  // Looked up each time: an earlier event of this round may have removed it.
  if (const auto found = watched_.find(id); found != watched_.end()) found->second.handler->on_ready(events);
}

void IoLoop::run_again() {
  // Those that ask once more wait for the next round.
  const auto due = std::exchange(again_, {});
  for (const auto& [id, events] : due) dispatch(id, events);
}

int IoLoop::next_timeout_ms() const {
  const std::optional<Time> next = next_timer();
  if (!next) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
}

// False once stop() was called and nothing is left to run.
bool IoLoop::run_tasks() {
  std::vector<Task> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
    if (tasks.empty() && stopping_) {
      stopped_ = true;
      changed_.notify_all();
      return false;
    }
  }
  for (auto& task : tasks) task();
  return true;
}

void IoLoop::loop() {
  std::array<epoll_event, kEventsPerWait> events;
  std::unique_lock running(loop_mutex_);
  running_ = true;
  for (;;) {
    int timeout = next_timeout_ms();
    {
      std::lock_guard lock(mutex_);
      if (!tasks_.empty() || stopping_) timeout = 0;
    }
    if (!again_.empty()) timeout = 0;
    runner_.store({}, std::memory_order_relaxed);
    running.unlock();
    const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsPerWait, timeout);
    wanted_back_.store(true, std::memory_order_relaxed);
    running.lock();
    wanted_back_.store(false, std::memory_order_relaxed);
    runner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    for (int i = 0; i < count; ++i) {
      const HandlerId id = events[i].data.u64;
      if (id == kWakeId) {
        eventfd_t value = 0;
        (void)::eventfd_read(wake_.get(), &value);
        continue;
      }
      dispatch(id, events[i].events);
    }
    run_again();
    run_timers_until(now());
    if (!run_tasks()) break;
  }
  running_ = false;
  runner_.store({}, std::memory_order_relaxed);
}

}  // namespace geocomm::transport
