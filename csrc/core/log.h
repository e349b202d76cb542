// Log lines to stderr, or to a sink that tests set. Thread-safe. The level comes from
// geocomm/core/options.py.
//
// A line on stderr begins with the time in UTC and with "geocomm", or is an object of JSON.
// geocomm/core/message_log.py writes alike.
//
// Nobody who logs waits for stderr: one thread of its own writes the lines, so that a full pipe or a hung
// file system stops neither links nor operations. Lines that find kLogRoomBytes waiting are left out, and
// counted.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "core/deadline.h"
#include "core/status.h"
#include "core/str.h"

namespace geocomm::core {

enum class LogLevel : int { Debug = 0, Info = 1, Warning = 2, Error = 3, Off = 4 };

// Bytes of lines that may wait for stderr.
inline constexpr std::size_t kLogRoomBytes = 256 << 10;

void set_log_level(LogLevel level);
LogLevel log_level();
// `sink` is called with the lock held; nullptr restores stderr. A forked child writes to stderr.
void set_log_sink(std::function<void(LogLevel, const std::string&)> sink);
void write_log(LogLevel level, const std::string& line);
// A whole line, as its caller has made it: to stderr, whatever the level.
void write_log_line(std::string line);
// From now on each line is an object of JSON: "time", "level", "pid", these fields (as text of JSON, each
// with a comma behind it), and "message". Once, before other threads log.
void set_log_json(std::string fields);
// Waits until stderr has taken all that was logged; false: not by then. Before a process ends itself; at exit
// it happens without being asked.
bool flush_log(Deadline deadline);

// A line for which there is no memory is dropped: nobody fails for what he says.
template <typename... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (level < log_level()) return;
  (void)without_throwing([&] {
    write_log(level, str(parts...));
    return Status::ok();
  });
}

}  // namespace geocomm::core
