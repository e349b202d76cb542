#include "emulator/wan_report.h"

#include <algorithm>
#include <sstream>

namespace geocomm::emulator {
namespace {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

const char* json_bool(bool value) {
  return value ? "true" : "false";
}

void write_link(std::ostream& out, const std::string& src, const std::string& dst, const LinkSnapshot& link) {
  const LinkParams& params = link.params;
  const LinkCounters& counters = link.counters;
  out << R"({"src":")" << src << R"(","dst":")" << dst << R"(","up":)" << json_bool(params.up)
      << R"(,"rate_bps":)" << params.rate_bps << R"(,"delay_s":)" << seconds(params.delay) << R"(,"loss":)"
      << params.loss << R"(,"queue_bytes":)" << params.queue_bytes() << R"(,"reorder":)" << params.reorder
      << R"(,"duplicate":)" << params.duplicate << R"(,"reset":)" << params.reset << R"(,"bytes":)"
      << counters.bytes << R"(,"segments":)" << counters.segments << R"(,"packets":)" << counters.packets
      << R"(,"dropped_loss":)" << counters.dropped_loss << R"(,"dropped_queue":)" << counters.dropped_queue
      << R"(,"dropped_down":)" << counters.dropped_down << R"(,"max_queue_bytes":)"
      << counters.max_queue_bytes << R"(,"reordered":)" << counters.reordered << R"(,"duplicated":)"
      << counters.duplicated << R"(,"resets":)" << counters.resets << R"(,"max_lateness_s":)"
      << seconds(link.max_lateness) << R"(,"late_packets":)" << link.late_packets << '}';
}

}  // namespace

std::string report_json(const WanConfig& config, const Router& router, const std::vector<Site>& sites,
                        std::chrono::nanoseconds elapsed) {
  std::ostringstream links;
  links.precision(15);
  std::chrono::nanoseconds max_lateness{0};
  std::uint64_t late_packets = 0;
  bool first = true;
  for (std::size_t src = 0; src < sites.size(); ++src) {
    for (std::size_t dst = 0; dst < sites.size(); ++dst) {
      if (src == dst) continue;
      const LinkSnapshot link = router.snapshot(src, dst);
      max_lateness = std::max(max_lateness, link.max_lateness);
      late_packets += link.late_packets;
      if (!first) links << ',';
      first = false;
      write_link(links, config.sites[src], config.sites[dst], link);
    }
  }
  std::ostringstream out;
  out.precision(15);
  out << R"({"sites":[)";
  const char* separator = "";
  for (const Site& site : sites) {
    out << separator << '"' << site.name << '"';
    separator = ",";
  }
  out << R"(],"exit_status":[)";
  separator = "";
  for (const Site& site : sites) {
    out << separator << (site.wait_status ? std::to_string(exit_status_of(*site.wait_status)) : "null");
    separator = ",";
  }
  out << R"(],"elapsed_s":)" << seconds(elapsed) << R"(,"max_lateness_s":)" << seconds(max_lateness)
      << R"(,"late_packets":)" << late_packets << R"(,"reliable":)"
      << json_bool(max_lateness <= kLatenessLimit) << R"(,"unroutable_packets":)"
      << router.unroutable_packets() << R"(,"links":[)" << links.str() << "]}";
  return out.str();
}

std::string error_json(std::string_view message) {
  std::string text;
  for (const char c : message) {
    if (c == '"' || c == '\\') text += '\\';
    text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return R"({"error":")" + text + "\"}";
}

}  // namespace geocomm::emulator
