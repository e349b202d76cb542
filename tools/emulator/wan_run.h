// One run of the emulator: sites up, commands run, links changed on request, everything cleaned up.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "emulator/wan_config.h"

namespace geocomm::emulator {

// The exit status of the emulator where it itself failed, as with `env` and `docker run`.
inline constexpr int kExitEmulatorFailed = 125;

// Runs `command` once per site and returns the exit status: 0, the first non-zero one of a site, or 128 +
// signal when interrupted. Ends the run when `lifeline_fd` ends, that is, when whoever started the emulator
// is gone. Writes to `report_fd`, unless that is negative, {"ok":true} once the sites run and report_json()
// at the end. Call once, from the only thread.
core::Result<int> run_emulator(const WanConfig& config, const std::vector<std::string>& command,
                               int lifeline_fd, int report_fd);

// Whether this machine lets the caller run an emulated WAN; the Status says what is missing.
core::Status check_machine();

}  // namespace geocomm::emulator
