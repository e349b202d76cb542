// The one way to start a thread.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "core/status.h"

namespace geocomm::core {

using Task = std::function<void()>;

// A thread of that name (at most 15 characters are kept) for debuggers and `top -H`. What `body` throws ends
// the process (must_not_throw.h). Internal, and it says what to do, where the system has no more threads.
Result<std::thread> start_thread(std::string name, Task body);

}  // namespace geocomm::core
