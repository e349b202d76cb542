#include "core/log.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "core/fork.h"
#include "core/thread.h"

namespace geocomm::core {

namespace {

std::atomic<LogLevel> g_level{LogLevel::Warning};
std::atomic<bool> g_is_json{false};
std::string g_json_fields;  // not in Log, since a forked child writes alike

struct Log {
  std::mutex mutex;  // guards all below
  std::function<void(LogLevel, const std::string&)> sink;
  std::condition_variable wake;     // there is something to write
  std::condition_variable written;  // stderr has taken all
  std::string lines;                // that wait, whole
  std::size_t left_out = 0;
  bool is_writing = false;
  bool has_thread = false;

  bool is_written() const { return lines.empty() && left_out == 0 && !is_writing; }
};

// Threads that a process's end does not wait for may still log. A forked child has no writer, and its parent
// writes what waits.
constinit PerProcess<Log> g_log;

// A string of JSON. What a peer has sent may be no UTF-8: each byte beyond ASCII that is not is left to
// readers.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      out += c;
    } else {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
      out += escape.data();
    }
  }
  return out + '"';
}

// A line as it is written: 2026-11-24T17:31:02Z geocomm warning: TEXT. In UTC, since sites have different
// clocks on their walls; by the calendar of C++, since gmtime_r takes a lock that a forked child may find
// held.
std::string stamped(std::string_view level, std::string_view text) {
  using namespace std::chrono;
  const auto now = floor<seconds>(system_clock::now());
  const auto today = floor<days>(now);
  const year_month_day date(today);
  const hh_mm_ss time(now - today);
  std::array<char, 64> stamp{};
  std::snprintf(stamp.data(), stamp.size(), "%04d-%02u-%02uT%02d:%02d:%02dZ", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                static_cast<int>(time.hours().count()), static_cast<int>(time.minutes().count()),
                static_cast<int>(time.seconds().count()));
  if (!g_is_json.load(std::memory_order_acquire)) {
    return str(stamp.data(), " geocomm ", level, ": ", text, '\n');
  }
  return str(R"({"time":")", stamp.data(), R"(","level":")", level, R"(","pid":)", ::getpid(), ',',
             g_json_fields, "\"message\":", quoted(text), "}\n");
}

void write_to_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {  // somebody made it non-blocking
      pollfd ready{STDERR_FILENO, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return;  // it is closed: nobody wants the lines
    }
  }
}

void run_writer(Log& log) {
  sigset_t all;  // SIGPIPE is an error of write() here, and other signals are for other threads
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(log.mutex);
  for (;;) {
    log.wake.wait(lock, [&] { return !log.lines.empty() || log.left_out > 0; });
    std::string text = std::exchange(log.lines, {});
    if (const std::size_t left_out = std::exchange(log.left_out, 0); left_out > 0) {
      text += stamped("warning", str(left_out, " log lines were left out here: stderr did not take them"));
    }
    log.is_writing = true;
    lock.unlock();
    write_to_stderr(text);
    lock.lock();
    log.is_writing = false;
    if (log.is_written()) log.written.notify_all();
  }
}

void flush_at_exit() {
  flush_log(Deadline::after(std::chrono::seconds(1)));
}

// The lock is held. False: the system has no more threads.
bool start_writer(Log& log) {
  static const bool registered = std::atexit(flush_at_exit) == 0;
  (void)registered;
  auto writer = start_thread("geocomm-log", [&log] { run_writer(log); });
  if (writer.is_ok()) writer->detach();
  return writer.is_ok();
}

void queue_line(Log& log, const std::string& line) {
  if (log.lines.size() + line.size() > kLogRoomBytes) {
    ++log.left_out;
  } else {
    log.lines += line;
  }
  if (!log.has_thread) log.has_thread = start_writer(log);
  log.wake.notify_one();
}

}  // namespace

void set_log_level(LogLevel level) {
  g_level.store(level, std::memory_order_relaxed);
}
LogLevel log_level() {
  return g_level.load(std::memory_order_relaxed);
}

void set_log_sink(std::function<void(LogLevel, const std::string&)> sink) {
  Log& log = g_log.get();
  std::lock_guard lock(log.mutex);
  log.sink = std::move(sink);
}

void write_log(LogLevel level, const std::string& line) {
  static constexpr std::array<const char*, 4> kNames = {"debug", "info", "warning", "error"};
  if (level < LogLevel::Debug || level >= LogLevel::Off) return;
  Log& log = g_log.get();
  std::lock_guard lock(log.mutex);
  if (log.sink) return log.sink(level, line);
  queue_line(log, stamped(kNames[static_cast<std::size_t>(level)], line));
}

void write_log_line(std::string line) {
  line += '\n';
  Log& log = g_log.get();
  std::lock_guard lock(log.mutex);
  queue_line(log, line);
}

void set_log_json(std::string fields) {
  g_json_fields = std::move(fields);
  g_is_json.store(true, std::memory_order_release);
}

bool flush_log(Deadline deadline) {
  Log& log = g_log.get();
  std::unique_lock lock(log.mutex);
  if (!log.has_thread) write_to_stderr(std::exchange(log.lines, {}));  // the system has no thread for it
  return log.written.wait_until(lock, deadline.when(), [&] { return log.is_written(); });
}

}  // namespace geocomm::core
