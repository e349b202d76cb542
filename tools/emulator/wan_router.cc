#include "emulator/wan_router.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>

namespace geocomm::emulator {
namespace {

constexpr std::uint32_t kNetwork = 10U << 24 | 91U << 16;

// Delivery times are met to within microseconds only with the timer slack off (50 us by default) and with
// precedence over the jobs that share the machine: the lowest real-time priority, or where that privilege is
// missing a better nice value, or where that is missing too nothing. Both threads of a port sleep whenever
// they have no packet at hand.
void prefer_this_thread() {
  prctl(PR_SET_TIMERSLACK, 1);
  const sched_param priority{1};
  if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority) == 0) return;
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), -15);
}

}  // namespace

std::uint32_t site_address(std::size_t site) {
  return kNetwork | static_cast<std::uint32_t>(site) << 8 | 1U;
}

std::optional<std::size_t> site_of_address(std::uint32_t address, std::size_t site_count) {
  const std::size_t site = address >> 8 & 0xff;
  if ((address & 0xffff0000U) != kNetwork || site >= site_count) return std::nullopt;
  return site;
}

Router::Router(std::vector<UniqueFd> tuns, const std::vector<LinkParams>& links, std::uint64_t seed) {
  for (UniqueFd& tun : tuns) {
    ports_.push_back(std::make_unique<Port>());
    ports_.back()->tun = std::move(tun);
  }
  for (std::size_t i = 0; i < links.size(); ++i)
    links_.push_back(std::make_unique<GuardedLink>(links[i], seed + i));
}

Router::~Router() {
  stop();
}

core::Status Router::start() {
  stop_event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event_.valid()) {
    return core::Status(core::StatusCode::Driver, "the kernel gave no event descriptor").with_errno(errno);
  }
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    GEOCOMM_ASSIGN_OR_RETURN(threads_.emplace_back(),
                             core::start_thread("wan-read", [this, i] { read_loop(i); }));
    GEOCOMM_ASSIGN_OR_RETURN(threads_.emplace_back(),
                             core::start_thread("wan-deliver", [this, i] { deliver_loop(i); }));
  }
  return core::Status::ok();
}

void Router::stop() {
  if (threads_.empty()) return;
  eventfd_write(stop_event_.get(), 1);
  for (const auto& port : ports_) {
    const std::lock_guard lock(port->mutex);
    port->stopping = true;
    port->changed.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Router::change(std::size_t src, std::size_t dst, const LinkParams& params) {
  GuardedLink& guarded = link(src, dst);
  const std::lock_guard lock(guarded.mutex);
  guarded.link.change(params, Clock::now());
}

LinkSnapshot Router::snapshot(std::size_t src, std::size_t dst) const {
  const GuardedLink& guarded = link(src, dst);
  const std::lock_guard lock(guarded.mutex);
  return {guarded.link.params(), guarded.link.counters(), std::chrono::nanoseconds(guarded.max_lateness_ns),
          guarded.late_packets};
}

void Router::read_loop(std::size_t src) {
  prefer_this_thread();
  const int tun = ports_[src]->tun.get();
  std::vector<std::byte> buffer(kMaxFrameBytes);
  std::vector<SegmentRun> runs;
  std::array<pollfd, 2> fds{pollfd{tun, POLLIN, 0}, pollfd{stop_event_.get(), POLLIN, 0}};
  for (;;) {
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return;
    if (fds[1].revents != 0) return;
    for (;;) {
      const ssize_t got = read(tun, buffer.data(), buffer.size());
      if (got > 0) {
        route(src, {buffer.data(), static_cast<std::size_t>(got)}, runs);
      } else if (got < 0 && errno == EAGAIN) {
        break;
      } else if (got < 0 && errno != EINTR) {
        // The device is down or gone. It may come back while its namespace lives, so look again, but without
        // spinning.
        if (poll(&fds[1], 1, 10) > 0) return;
        break;
      }
    }
  }
}

void Router::route(std::size_t src, std::span<const std::byte> bytes, std::vector<SegmentRun>& runs) {
  const auto frame = parse_frame(bytes);
  const auto dst = frame ? site_of_address(frame->dst_address, ports_.size()) : std::nullopt;
  if (!dst || *dst == src) {
    ++unroutable_packets_;
    return;
  }
  runs.clear();
  GuardedLink& guarded = link(src, *dst);
  {
    const std::lock_guard lock(guarded.mutex);
    guarded.link.admit(*frame, Clock::now(), runs);
  }
  Port& port = *ports_[*dst];
  for (const SegmentRun& run : runs) {
    Delivery delivery{run.due, 0, &guarded,
                      run.reset ? make_reset(*frame, run.first) : extract_run(*frame, run.first, run.count)};
    const std::lock_guard lock(port.mutex);
    delivery.order = port.next_order++;
    const bool first = port.pending.empty() || run.due < port.pending.top().due;
    port.pending.push(std::move(delivery));
    if (first) port.changed.notify_one();
  }
}

void Router::deliver_loop(std::size_t dst) {
  prefer_this_thread();
  Port& port = *ports_[dst];
  std::unique_lock lock(port.mutex);
  while (!port.stopping) {
    if (port.pending.empty()) {
      port.changed.wait(lock);
      continue;
    }
    const Clock::time_point due = port.pending.top().due;
    const auto lateness = Clock::now() - due;
    if (lateness < Clock::duration::zero()) {
      port.changed.wait_until(lock, due);
      continue;
    }
    // top() is const only to protect the order of the heap, which pop() ends here.
    const Delivery delivery = std::move(const_cast<Delivery&>(port.pending.top()));
    port.pending.pop();
    lock.unlock();
    GuardedLink& source = *delivery.link;
    if (lateness.count() > source.max_lateness_ns) source.max_lateness_ns = lateness.count();
    if (lateness > kLatenessLimit) ++source.late_packets;
    // A refusal (the device was taken down inside the site) is a lost packet, as on a real host.
    [[maybe_unused]] const ssize_t written =
        write(port.tun.get(), delivery.bytes.data(), delivery.bytes.size());
    lock.lock();
  }
}

}  // namespace geocomm::emulator
