// Log lines to stderr, or to a sink that the binding sets. Thread-safe. The level comes from
// geocomm/options.py.
#pragma once

#include <functional>
#include <string>

#include "core/str.h"

namespace geocomm::core {

enum class LogLevel : int { Debug = 0, Info = 1, Warning = 2, Error = 3, Off = 4 };

void set_log_level(LogLevel level);
LogLevel log_level();
// `sink` is called with the lock held; nullptr restores stderr.
void set_log_sink(std::function<void(LogLevel, const std::string&)> sink);
void write_log(LogLevel level, const std::string& line);

template <typename... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (level >= log_level()) write_log(level, str(parts...));
}

}  // namespace geocomm::core
