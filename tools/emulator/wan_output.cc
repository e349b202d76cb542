#include "emulator/wan_output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

namespace geocomm::emulator {
namespace {

constexpr std::size_t kReadBytes = 65536;
constexpr std::size_t kMaxLineBytes = 65536;  // a longer line is cut into several

// False: nobody reads `fd` any more.
bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      pollfd ready{fd, POLLOUT, 0};
      poll(&ready, 1, -1);
      continue;
    }
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

OutputPump::~OutputPump() {
  if (!thread_.joinable()) return;
  if (done_) {
    thread_.join();
  } else {
    thread_.detach();  // stuck in a write; only a process about to exit comes here
  }
}

void OutputPump::add(const std::string& site, UniqueFd source, int target_fd) {
  streams_.push_back({"[" + site + "] ", std::move(source), target_fd, {}});
}

core::Status OutputPump::start() {
  if (streams_.empty()) return core::Status::ok();
  done_ = false;
  auto thread = core::start_thread("wan-output", [this] { run(); });
  done_ = !thread.is_ok();
  if (thread.is_ok()) thread_ = std::move(thread).value();
  return thread.status();
}

bool OutputPump::forward(Stream& stream, std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t newline = text.find('\n');
    const std::size_t taken = std::min(newline, text.size());
    stream.partial_line += text.substr(0, taken);
    text.remove_prefix(std::min(taken + 1, text.size()));
    if (newline == std::string_view::npos && stream.partial_line.size() < kMaxLineBytes) break;
    out += stream.prefix + stream.partial_line + '\n';
    stream.partial_line.clear();
  }
  return write_all(stream.target_fd, out);
}

void OutputPump::run() {
  std::string buffer(kReadBytes, '\0');
  std::vector<pollfd> fds;
  for (const Stream& stream : streams_) fds.push_back({stream.source.get(), POLLIN, 0});
  for (std::size_t open = fds.size(); open > 0;) {
    if (poll(fds.data(), fds.size(), -1) < 0) continue;
    for (std::size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      const ssize_t got = read(fds[i].fd, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got > 0 && forward(streams_[i], {buffer.data(), static_cast<std::size_t>(got)})) continue;
      if (got == 0 && !streams_[i].partial_line.empty()) forward(streams_[i], "\n");
      // Where it was the reader who left, as in `geocomm wan ... | head`, the site gets the SIGPIPE that a
      // pipeline gives.
      streams_[i].source.reset();
      fds[i].fd = -1;
      --open;
    }
  }
  done_ = true;
}

}  // namespace geocomm::emulator
