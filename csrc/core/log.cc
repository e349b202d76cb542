#include "core/log.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>

namespace geocomm::core {

namespace {
std::atomic<LogLevel> g_level{LogLevel::Warning};
std::mutex g_mutex;  // guards g_sink and keeps lines whole
std::function<void(LogLevel, const std::string&)> g_sink;
}  // namespace

void set_log_level(LogLevel level) {
  g_level.store(level, std::memory_order_relaxed);
}
LogLevel log_level() {
  return g_level.load(std::memory_order_relaxed);
}

void set_log_sink(std::function<void(LogLevel, const std::string&)> sink) {
  std::lock_guard lock(g_mutex);
  g_sink = std::move(sink);
}

void write_log(LogLevel level, const std::string& line) {
  static constexpr std::array<const char*, 4> kNames = {"debug", "info", "warning", "error"};
  if (level < LogLevel::Debug || level >= LogLevel::Off) return;
  std::lock_guard lock(g_mutex);
  if (g_sink) {
    g_sink(level, line);
  } else {
    std::fprintf(stderr, "geocomm %s: %s\n", kNames[static_cast<std::size_t>(level)], line.c_str());
  }
}

}  // namespace geocomm::core
