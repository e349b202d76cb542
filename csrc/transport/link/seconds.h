// Times in messages.
#pragma once

#include <chrono>
#include <string>

#include "core/str.h"

namespace geocomm::transport {

// "1.5 s"
inline std::string in_seconds(std::chrono::milliseconds time) {
  return core::str(static_cast<double>(time.count()) / 1000, " s");
}

}  // namespace geocomm::transport
