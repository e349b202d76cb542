#include "core/thread.h"

#include <pthread.h>

#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

#include "core/must_not_throw.h"

namespace geocomm::core {

Result<std::thread> start_thread(std::string name, Task body) {
  int why = ENOMEM;
  try {
    return std::thread(
        [where = "ended the thread " + name, name = name.substr(0, 15), body = std::move(body)] {
          pthread_setname_np(pthread_self(), name.c_str());
          must_not_throw(where.c_str(), body);
        });
  } catch (const std::system_error& error) {
    why = error.code().value();
  } catch (const std::bad_alloc&) {
  }
  return Status(StatusCode::Internal,
                str("cannot start the thread ", name,
                    ": the system has no more threads for this process. Raise ",
                    "the limit of processes (`ulimit -u`, or pids.max of the container's cgroup)"))
      .with_errno(why);
}

}  // namespace geocomm::core
