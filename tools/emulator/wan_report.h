// The state of a run as one line of JSON, for the control socket and for the end of the run.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/wan_config.h"
#include "emulator/wan_router.h"
#include "emulator/wan_site.h"

namespace geocomm::emulator {

// Keys: sites, exit_status (per site, null while it runs), elapsed_s, max_lateness_s, late_packets, reliable,
// unroutable_packets, links: [{src, dst, up, rate_bps, delay_s, loss, queue_bytes, bytes, segments, packets,
// dropped_loss, dropped_queue, dropped_down, max_queue_bytes, max_lateness_s, late_packets}].
std::string report_json(const WanConfig& config, const Router& router, const std::vector<Site>& sites,
                        std::chrono::nanoseconds elapsed);

std::string error_json(std::string_view message);

}  // namespace geocomm::emulator
