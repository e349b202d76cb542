#include "emulator/wan_site.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "core/str.h"
#include "emulator/wan_namespace.h"

namespace geocomm::emulator {
namespace {

using core::Result;
using core::Status;
using core::StatusCode;

// Messages over the seqpacket socket; the first byte is the kind.
constexpr char kReady = 'R';      // supervisor: network is up; carries the TUN descriptor and the warnings
constexpr char kFailed = 'F';     // supervisor: set-up failed; text follows
constexpr char kEnded = 'E';      // supervisor: the command ended; its wait status follows
constexpr char kGo = 'G';         // emulator: run the command
constexpr char kTerminate = 'T';  // emulator: SIGTERM to the command's process group

constexpr std::size_t kMaxMessageBytes = 4096;
constexpr int kExitNotRunnable = 126, kExitNotFound = 127;
constexpr auto kKillPatience = std::chrono::seconds(5);

void send_message(int socket, char kind, std::string_view body, int passed_fd = -1) {
  std::string message(1, kind);
  message += body.substr(0, kMaxMessageBytes - 1);
  iovec part{message.data(), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (passed_fd >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &passed_fd, sizeof(int));
  }
  // Failure means that the other side is gone, which its socket's end tells its reader anyway.
  [[maybe_unused]] const ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL);
}

// An empty string: the other side is gone.
std::string receive_message(int socket, UniqueFd* passed_fd = nullptr) {
  std::string message(kMaxMessageBytes, '\0');
  iovec part{message.data(), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t got = -1;
  do {
    got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return {};
  message.resize(static_cast<std::size_t>(got));
  const cmsghdr* rights = CMSG_FIRSTHDR(&header);
  if (passed_fd != nullptr && rights != nullptr && rights->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof(int));
    *passed_fd = UniqueFd(fd);
  }
  return message;
}

void close_all_but(std::vector<int> kept) {
  std::sort(kept.begin(), kept.end());
  unsigned first = STDERR_FILENO + 1;
  for (const int fd : kept) {
    if (fd < static_cast<int>(first)) continue;
    if (static_cast<unsigned>(fd) > first) syscall(SYS_close_range, first, fd - 1, 0);
    first = static_cast<unsigned>(fd) + 1;
  }
  syscall(SYS_close_range, first, std::numeric_limits<unsigned>::max(), 0);
}

ino_t network_of(const char* process) {
  struct stat info{};
  const std::string path = core::str("/proc/", process, "/ns/net");
  return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

// SIGKILL to every other process of this network namespace: the job's processes wherever they were
// reparented, also those that left their process group or session. Returns how many there were.
int kill_namespace() {
  const ino_t own = network_of("self");
  DIR* proc = opendir("/proc");
  if (own == 0 || proc == nullptr) {
    if (proc != nullptr) closedir(proc);
    return 0;
  }
  int killed = 0;
  while (const dirent* entry = readdir(proc)) {
    pid_t pid = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    const auto parsed = std::from_chars(entry->d_name, end, pid);
    if (parsed.ec != std::errc() || parsed.ptr != end || pid == getpid()) continue;
    if (network_of(entry->d_name) == own && kill(pid, SIGKILL) == 0) ++killed;
  }
  closedir(proc);
  return killed;
}

void reap(pid_t command, int socket, bool& command_ended) {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid != command) continue;
    command_ended = true;
    send_message(socket, kEnded, {reinterpret_cast<const char*>(&status), sizeof(status)});
  }
}

[[noreturn]] void exec_command(const SiteSpec& spec) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const auto& [key, value] : spec.environment) setenv(key.c_str(), value.c_str(), 1);
  keep_network_capabilities();
  std::vector<char*> arguments;
  for (const std::string& word : spec.command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  dprintf(STDERR_FILENO, "cannot run '%s': %s\n", arguments[0], std::strerror(error));
  _exit(error == ENOENT ? kExitNotFound : kExitNotRunnable);
}

// The supervisor's life after its network is up. Ends when the emulator closes the socket or dies.
[[noreturn]] void supervise(const SiteSpec& spec, int socket) {
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  const UniqueFd child_events(signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK));
  pid_t command = -1;
  bool command_ended = false;
  std::array<pollfd, 2> fds{pollfd{socket, POLLIN, 0}, pollfd{child_events.get(), POLLIN, 0}};
  for (;;) {
    if (poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[1].revents != 0) {
      signalfd_siginfo info;
      while (read(child_events.get(), &info, sizeof(info)) > 0) {
      }
      reap(command, socket, command_ended);
    }
    if (fds[0].revents == 0) continue;
    const std::string message = receive_message(socket);
    if (message.empty()) break;
    if (message[0] == kGo && command < 0) {
      command = fork();
      if (command == 0) exec_command(spec);
      // The pipes must end with the job's processes, not with the supervisor.
      const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
      for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) dup2(null.get(), fd);
    } else if (message[0] == kTerminate && command > 0 && !command_ended) {
      // The group may not be there yet if the child has not come to its setsid().
      if (kill(-command, SIGTERM) != 0) kill(command, SIGTERM);
    }
  }
  const auto deadline = std::chrono::steady_clock::now() + kKillPatience;
  while (kill_namespace() > 0 && std::chrono::steady_clock::now() < deadline) {
    poll(nullptr, 0, 5);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
  if (!spec.control_path.empty()) unlink(spec.control_path.c_str());
  _exit(0);
}

[[noreturn]] void run_supervisor(const SiteSpec& spec, int socket, int out, int err) {
  // Its own session: Ctrl-C and a kill of the emulator's process group must not reach the one that cleans up.
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_NAME, "geocomm-site");
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0) dup2(null, STDIN_FILENO);
  if (!spec.raw) {
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
  }
  close_all_but({socket});
  std::string warnings;
  auto tun = enter_site_network(spec.index, spec.bdp_bytes, warnings);
  if (!tun) {
    send_message(socket, kFailed, tun.status().message());
    _exit(1);
  }
  send_message(socket, kReady, warnings, tun->get());
  tun->reset();
  supervise(spec, socket);
}

bool make_pipe(UniqueFd& reader, UniqueFd& writer) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return false;
  reader = UniqueFd(ends[0]);
  writer = UniqueFd(ends[1]);
  return true;
}

}  // namespace

Result<Site> start_site(const SiteSpec& spec) {
  Site site;
  site.name = spec.name;
  std::array<int, 2> sockets{};
  UniqueFd out_writer, err_writer;
  const bool made = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) == 0;
  UniqueFd theirs(made ? sockets[1] : -1);
  site.socket = UniqueFd(made ? sockets[0] : -1);
  if (!made || (!spec.raw && (!make_pipe(site.out, out_writer) || !make_pipe(site.err, err_writer)))) {
    return Status(StatusCode::Driver,
                  core::str("no descriptors left for site '", spec.name, "'; raise ulimit -n"))
        .with_errno(errno);
  }
  site.supervisor = fork();
  if (site.supervisor == 0) run_supervisor(spec, theirs.get(), out_writer.get(), err_writer.get());
  if (site.supervisor < 0) {
    return Status(StatusCode::Driver, core::str("cannot fork for site '", spec.name, "'")).with_errno(errno);
  }
  theirs.reset();
  const std::string answer = receive_message(site.socket.get(), &site.tun);
  if (answer.empty() || answer[0] != kReady || !site.tun.valid()) {
    const std::string why = answer.size() > 1 ? answer.substr(1) : "its supervisor died";
    close_site(site);
    return Status(StatusCode::Unsupported, core::str(why, " (site '", spec.name, "')"));
  }
  site.warnings = answer.substr(1);
  return site;
}

void release_site(const Site& site) {
  send_message(site.socket.get(), kGo, {});
}

void terminate_site(const Site& site) {
  send_message(site.socket.get(), kTerminate, {});
}

void receive_site_status(Site& site) {
  const std::string message = receive_message(site.socket.get());
  if (message.empty()) {
    site.wait_status = SIGKILL;
  } else if (message[0] == kEnded && message.size() == 1 + sizeof(int)) {
    int status = 0;
    std::memcpy(&status, message.data() + 1, sizeof(status));
    site.wait_status = status;
  }
}

void close_site(Site& site) {
  site.socket.reset();
  if (site.supervisor > 0) {
    while (waitpid(site.supervisor, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  site.supervisor = -1;
}

int exit_status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace geocomm::emulator
