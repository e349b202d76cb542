#include "link_bench/bench_process.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <system_error>
#include <thread>
#include <utility>

namespace geocomm::link_bench {

namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double cpu_seconds() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

struct Part {
  Moved received;
  double cpu = 0;
};

Part take_part(const Settings& settings, const MakeEnd& make_end, bool parent, const Partner& partner) {
  const std::unique_ptr<End> end = make_end(settings, parent, partner);
  partner.meet();
  Window window{Clock::now() + std::chrono::duration_cast<Clock::duration>(settings.warmup), {}};
  parent ? partner.tell(&window.begin, sizeof window.begin)
         : partner.hear(&window.begin, sizeof window.begin);
  window.end = window.begin + std::chrono::duration_cast<Clock::duration>(settings.time);
  end->start(window);
  std::this_thread::sleep_until(window.begin);
  const double before = cpu_seconds();
  std::this_thread::sleep_until(window.end);
  Part part;
  part.cpu = cpu_seconds() - before;
  part.received = end->received();
  partner.meet();
  return part;
}

}  // namespace

void stop(const std::string& why) {
  std::cerr << "link_bench: " << why << std::endl;
  std::_Exit(1);
}

std::thread bench_thread(core::Task body) {
  auto thread = core::start_thread("link_bench", std::move(body));
  if (!thread.is_ok()) stop(thread.status().to_string());
  return std::move(thread).value();
}

void Partner::tell(const void* data, std::size_t bytes) const {
  if (::send(fd_, data, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) stop("the other end is gone");
}

void Partner::hear(void* data, std::size_t bytes) const {
  if (::recv(fd_, data, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) stop("the other end is gone");
}

void Partner::meet() const {
  char sign = 0;
  tell(&sign, sizeof sign);
  hear(&sign, sizeof sign);
}

bool Meter::count(std::size_t bytes) {
  const auto now = Clock::now();
  if (now >= window_.end) return false;
  if (now < window_.begin) return true;
  if (first_ == Clock::time_point{}) {
    first_ = now;
    return true;
  }
  moved_.bytes += static_cast<double>(bytes);
  moved_.seconds = std::chrono::duration<double>(now - first_).count();
  return true;
}

Outcome measure(const Settings& settings, const MakeEnd& make_end) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) stop("no socket pair");
  const pid_t child = ::fork();
  if (child < 0) stop("cannot fork: " + std::generic_category().message(errno));
  (void)::close(ends[child == 0 ? 0 : 1]);
  const Partner partner(ends[child == 0 ? 1 : 0]);
  const Part own = take_part(settings, make_end, child != 0, partner);
  if (child == 0) {
    partner.tell(&own, sizeof own);
    std::_Exit(0);
  }
  Part other;
  partner.hear(&other, sizeof other);
  (void)::close(ends[0]);
  (void)::waitpid(child, nullptr, 0);
  return {other.received, own.received, own.cpu, other.cpu};
}

}  // namespace geocomm::link_bench
