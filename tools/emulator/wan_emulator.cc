// The emulator's command line; people use `geocomm wan`, which writes the configuration.
//   wan_emulator run [--report-fd N] -- CMD ARG...   configuration on stdin (see wan_config.h), then "go";
//   the run ends
//                                                    when stdin ends; N gets {"ok":true} or {"error":"..."}
//                                                    once it is known, and the report at the end
//   wan_emulator check                               exit 0 where an emulated WAN is possible, else say what
//   is missing
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/wan_report.h"
#include "emulator/wan_run.h"

namespace {

using geocomm::core::Result;
using geocomm::core::Status;
using geocomm::core::StatusCode;

constexpr std::size_t kMaxConfigBytes = 4 << 20;

// Reads up to the line "go" and not a byte further: the rest of stdin is the lifeline.
Result<std::string> read_config() {
  std::string text;
  while (text.size() < kMaxConfigBytes) {
    char next = 0;
    const ssize_t got = read(STDIN_FILENO, &next, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return Status(StatusCode::InvalidArgument, "the configuration on stdin ended without \"go\"");
    text += next;
    if (text == "go\n" || text.ends_with("\ngo\n")) return text.substr(0, text.size() - 3);
  }
  return Status(StatusCode::InvalidArgument, "the configuration on stdin is too long");
}

// Where somebody listens for the outcome, that is who says it to the user.
int fail(const Status& status, int report_fd = -1) {
  if (report_fd >= 0) {
    dprintf(report_fd, "%s\n", geocomm::emulator::error_json(status.message()).c_str());
  } else {
    std::fprintf(stderr, "geocomm wan: %s\n", status.message().c_str());
  }
  return geocomm::emulator::kExitEmulatorFailed;
}

int run(const std::vector<std::string_view>& words) {
  std::size_t next = 1;
  int report_fd = -1;
  if (next + 1 < words.size() && words[next] == "--report-fd") {
    std::from_chars(words[next + 1].data(), words[next + 1].data() + words[next + 1].size(), report_fd);
    next += 2;
  }
  if (next >= words.size() || words[next] != "--" || next + 1 == words.size()) {
    return fail({StatusCode::InvalidArgument, "usage: wan_emulator run [--report-fd N] -- CMD ARG..."});
  }
  const std::vector<std::string> command(words.begin() + static_cast<std::ptrdiff_t>(next) + 1, words.end());
  const auto text = read_config();
  if (!text) return fail(text.status(), report_fd);
  const auto config = geocomm::emulator::parse_config(*text);
  if (!config) return fail(config.status(), report_fd);
  const auto status = geocomm::emulator::run_emulator(*config, command, STDIN_FILENO, report_fd);
  return status ? *status : fail(status.status(), report_fd);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "run") return run(words);
  if (words.size() == 1 && words[0] == "check") {
    const Status status = geocomm::emulator::check_machine();
    return status.is_ok() ? 0 : fail(status);
  }
  return fail({StatusCode::InvalidArgument,
               "usage: wan_emulator run [--report-fd N] -- CMD ARG... | wan_emulator check"});
}
