// link_bench: one measurement of what a link over loopback moves, as a line of JSON. `geocomm bench link`
// runs it and compares.
#include <getopt.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include "link_bench/bench_process.h"

namespace {

constexpr char kUsage[] =
    "usage: link_bench tcp|tls|channel [--keys-a DIR --keys-b DIR] [--streams N] [--tls-threads N] "
    "[--congestion NAME] [--both-ways] [--seconds S]\n";

[[noreturn]] void usage() {
  std::cerr << kUsage;
  std::exit(2);
}

geocomm::link_bench::Settings parse(int count, char** arguments) {
  geocomm::link_bench::Settings settings;
  const option options[] = {
      {"keys-a", required_argument, nullptr, 'a'},     {"keys-b", required_argument, nullptr, 'b'},
      {"streams", required_argument, nullptr, 's'},    {"tls-threads", required_argument, nullptr, 'n'},
      {"congestion", required_argument, nullptr, 'c'}, {"both-ways", no_argument, nullptr, '2'},
      {"seconds", required_argument, nullptr, 't'},    {nullptr, 0, nullptr, 0}};
  for (int code = 0; (code = ::getopt_long(count, arguments, "", options, nullptr)) != -1;) {
    switch (code) {
      case 'a':
        settings.keys_a = optarg;
        break;
      case 'b':
        settings.keys_b = optarg;
        break;
      case 's':
        settings.streams = std::atoi(optarg);
        break;
      case 'n':
        settings.tls_threads = std::atoi(optarg);
        break;
      case 'c':
        settings.congestion = optarg;
        break;
      case '2':
        settings.both_ways = true;
        break;
      case 't':
        settings.time = std::chrono::duration<double>(std::atof(optarg));
        break;
      default:
        usage();
    }
  }
  if (optind + 1 != count || !(settings.time.count() > 0)) usage();
  settings.what = arguments[optind];
  return settings;
}

double gbit_per_second(const geocomm::link_bench::Moved& moved) {
  return moved.seconds > 0 ? 8e-9 * moved.bytes / moved.seconds : 0;
}

}  // namespace

int main(int count, char** arguments) {
  using namespace geocomm::link_bench;
  (void)std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets whose other end is gone
  const Settings settings = parse(count, arguments);
  const bool bare = settings.what == "tcp" || settings.what == "tls";
  if (!bare && settings.what != "channel") usage();
  if (settings.what == "tls" && (settings.keys_a.empty() || settings.keys_b.empty())) usage();
  const Outcome outcome = measure(settings, bare ? make_bare_end : make_channel_end);
  std::cout << "{\"gbit_s\": " << gbit_per_second(outcome.to_child) + gbit_per_second(outcome.to_parent)
            << ", \"cpu_a\": " << outcome.parent_cpu / settings.time.count()
            << ", \"cpu_b\": " << outcome.child_cpu / settings.time.count() << "}" << std::endl;
  return 0;
}
