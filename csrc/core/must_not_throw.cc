#include "core/must_not_throw.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

namespace geocomm::core {

void end_process(const char* where, const char* what) {
  std::array<char, 512> line{};
  const int size = std::snprintf(
      line.data(), line.size(),
      "geocomm error: an exception %s: %s. The process ends, since others would wait for it for ever.\n",
      where, what);
  const auto bytes = std::min<std::size_t>(size > 0 ? static_cast<std::size_t>(size) : 0, line.size() - 1);
  (void)!::write(STDERR_FILENO, line.data(), bytes);
  std::abort();
}

}  // namespace geocomm::core
