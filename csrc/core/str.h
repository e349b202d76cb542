// str("rank ", 3, " of ", n): one string out of its parts (std::format needs a newer libstdc++ than Debian 12
// has).
#pragma once

#include <sstream>
#include <string>

namespace geocomm::core {

template <typename... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

}  // namespace geocomm::core
