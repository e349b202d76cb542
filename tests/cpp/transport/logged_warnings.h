// What the library logs, for tests that look for it.
#pragma once

#include <mutex>
#include <string>
#include <thread>

#include "core/deadline.h"
#include "core/log.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {

// Keeps the warnings that the library logs.
class LoggedWarnings {
 public:
  LoggedWarnings() {
    core::set_log_level(core::LogLevel::Warning);
    core::set_log_sink([this](core::LogLevel, const std::string& line) {
      std::lock_guard lock(mutex_);
      lines_ += line + "\n";
    });
  }
  ~LoggedWarnings() {
    core::set_log_sink(nullptr);
    core::set_log_level(core::LogLevel::Error);
  }
  // Waits until a line has `part`.
  bool has(const std::string& part) {
    for (const Deadline end = Deadline::after(10s); !end.expired(); std::this_thread::sleep_for(5ms)) {
      std::lock_guard lock(mutex_);
      if (lines_.find(part) != std::string::npos) return true;
    }
    return false;
  }
  std::string text() {
    std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::string lines_;
};

}  // namespace geocomm::transport::testing
