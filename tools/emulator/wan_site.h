// One site: a supervisor process in a network namespace of its own, which runs the site's command and
// outlives every process the command leaves behind, so that none survives the emulator, however either of
// them ends.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "emulator/wan_fd.h"

namespace geocomm::emulator {

struct SiteSpec {
  std::size_t index = 0;
  std::string name;
  double bdp_bytes = 0;  // the most data that one of its links holds in flight
  std::vector<std::pair<std::string, std::string>> environment;  // added to the emulator's own
  std::vector<std::string> command;
  bool raw = false;          // the command writes to the emulator's stdout and stderr, not to pipes
  std::string control_path;  // removed by the supervisor where the emulator could not
};

// The emulator's end of a running supervisor.
struct Site {
  std::string name;
  pid_t supervisor = -1;
  UniqueFd socket;  // closing it makes the supervisor kill all of the site's processes and end
  UniqueFd tun;
  UniqueFd out;  // read ends of the command's stdout and stderr; invalid if raw
  UniqueFd err;
  std::string warnings;
  std::optional<int> wait_status;  // of the command, once it ended
};

// Forks the supervisor and waits until its network is there; the command does not run yet. Precondition:
// acquire_privileges(), one thread, and SIGCHLD, SIGINT, SIGTERM and SIGHUP blocked.
core::Result<Site> start_site(const SiteSpec& spec);

// Runs the command of a started site.
void release_site(const Site& site);
// Sends SIGTERM to the command's process group.
void terminate_site(const Site& site);
// Call when site.socket is readable: takes the command's wait status, or SIGKILL's where the supervisor
// vanished.
void receive_site_status(Site& site);
// Kills what is left of the site and waits for its supervisor.
void close_site(Site& site);

// A shell's exit status: the command's own, or 128 + the signal that ended it.
int exit_status_of(int wait_status);

}  // namespace geocomm::emulator
