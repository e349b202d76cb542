#include "failing_heap.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <iostream>
#include <map>
#include <string>

namespace geocomm::faults {

namespace {

constexpr unsigned kWatchdogSeconds = 120;
constexpr int kNotReached = 100;  // added to the outcome: fewer allocations than that
constexpr std::size_t kAtATime = 4;

struct Child {
  std::int64_t before = 0;
  int words = -1;  // its stderr
};

pid_t start(const std::function<Outcome(std::int64_t)>& scenario, std::int64_t before, Child& child) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return -1;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::alarm(kWatchdogSeconds);
    Outcome outcome = Outcome::Threw;
    try {
      outcome = scenario(before);
    } catch (...) {
    }
    ::_exit(static_cast<int>(outcome) + (stop_failing() ? 0 : kNotReached));
  }
  ::close(ends[1]);
  child = {before, ends[0]};
  return pid;
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t size; (size = ::read(fd, part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(size));
  }
  ::close(fd);
  return text;
}

std::string what_is_wrong(int status, const std::string& words, bool may_abort) {
  if (WIFSIGNALED(status)) {
    const bool in_words = words.find("geocomm error: an exception") != std::string::npos ||
                          words.find("std::bad_alloc") != std::string::npos;
    if (WTERMSIG(status) == SIGABRT && may_abort && in_words &&
        words.find("Sanitizer") == std::string::npos) {
      return {};
    }
    return WTERMSIG(status) == SIGALRM ? "it did not end"
                                       : "it ended by signal " + std::to_string(WTERMSIG(status));
  }
  switch (WEXITSTATUS(status)) {
    case static_cast<int>(Outcome::Right):
    case static_cast<int>(Outcome::Error):
    case static_cast<int>(Outcome::Right) + kNotReached:
      return {};
    case static_cast<int>(Outcome::Error) + kNotReached:
      return "it failed without a fault";
    case static_cast<int>(Outcome::Wrong):
    case static_cast<int>(Outcome::Wrong) + kNotReached:
      return "its answer is wrong";
    case static_cast<int>(Outcome::Threw):
    case static_cast<int>(Outcome::Threw) + kNotReached:
      return "an exception came through";
    default:
      return "it exited with " + std::to_string(WEXITSTATUS(status));
  }
}

}  // namespace

std::int64_t try_each(const std::function<Outcome(std::int64_t)>& scenario, bool may_abort,
                      std::int64_t stride) {
  std::map<pid_t, Child> children;
  std::map<std::string, int> ends;
  std::int64_t tried = 0;
  bool over = false;
  while (!over || !children.empty()) {
    while (!over && children.size() < kAtATime) {
      Child child;
      const pid_t pid = start(scenario, tried * stride, child);
      if (pid < 0) {
        ADD_FAILURE() << "cannot fork: " << std::strerror(errno);
        over = true;
        break;
      }
      children[pid] = child;
      ++tried;
    }
    int status = 0;
    const pid_t pid = ::wait(&status);
    const auto found = children.find(pid);
    if (found == children.end()) break;
    const Child child = found->second;
    children.erase(found);
    const std::string words = read_all(child.words);
    const std::string wrong = what_is_wrong(status, words, may_abort);
    EXPECT_EQ(wrong, "") << "allocation " << child.before << " failed; it said: " << words;
    ++ends[WIFSIGNALED(status) ? "in words" : WEXITSTATUS(status) % kNotReached == 0 ? "right" : "an error"];
    // Threads do not always allocate in one order: a few more may come to it.
    if (!WIFSIGNALED(status) && WEXITSTATUS(status) >= kNotReached) over = true;
  }
  std::string report;
  for (const auto& [end, count] : ends)
    report += (report.empty() ? "" : ", ") + std::to_string(count) + " " + end;
  std::cout << tried << " allocations failed, one at a time: " << report << std::endl;
  return tried;
}

}  // namespace geocomm::faults
