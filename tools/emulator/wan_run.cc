#include "emulator/wan_run.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>

#include "core/str.h"
#include "emulator/wan_control.h"
#include "emulator/wan_namespace.h"
#include "emulator/wan_output.h"
#include "emulator/wan_report.h"
#include "emulator/wan_router.h"
#include "emulator/wan_site.h"

namespace geocomm::emulator {
namespace {

using core::Result;
using core::Status;
using core::StatusCode;
using std::chrono::milliseconds;

constexpr milliseconds kOutputPatience{2000};  // for a reader of stdout that is stuck, after an interruption

void say(const std::string& text) {
  dprintf(STDERR_FILENO, "geocomm wan: %s\n", text.c_str());
}

std::string address_text(std::size_t site) {
  const in_addr address{htonl(site_address(site))};
  return inet_ntoa(address);
}

class Emulation {
 public:
  Emulation(const WanConfig& config, int lifeline_fd)
      : config_(config),
        lifeline_fd_(lifeline_fd),
        control_([this](std::string_view line) { return answer(line); }) {}
  ~Emulation() { close_sites(); }

  Status start(const std::vector<std::string>& command);
  int wait();
  std::string report() const { return report_json(config_, *router_, sites_, Clock::now() - started_); }

 private:
  enum class Phase { Running, OneFailed, Terminating };

  SiteSpec spec_of(std::size_t index, const std::vector<std::string>& command) const;
  std::string answer(std::string_view line);
  bool all_ended() const;
  void note_end(const Site& site);
  void interrupt(int signal_number);
  void terminate_all(const std::string& why);
  void on_deadline();
  void close_sites();
  void drain_output();

  const WanConfig& config_;
  const int lifeline_fd_;
  UniqueFd signals_;
  std::vector<Site> sites_;
  std::unique_ptr<Router> router_;
  ControlServer control_;
  OutputPump output_;
  Clock::time_point started_{};

  Phase phase_ = Phase::Running;
  std::optional<Clock::time_point> deadline_;  // when the phase ends
  bool give_up_ = false;                       // stop waiting, kill what is left
  int exit_status_ = 0;
  bool interrupted_ = false;
};

SiteSpec Emulation::spec_of(std::size_t index, const std::vector<std::string>& command) const {
  SiteSpec spec;
  spec.index = index;
  spec.name = config_.sites[index];
  spec.command = command;
  spec.raw = config_.raw;
  spec.control_path = config_.control_path;
  const std::size_t count = config_.sites.size();
  for (std::size_t other = 0; other < count; ++other) {
    if (other == index) continue;
    for (const LinkParams& link :
         {config_.links[index * count + other], config_.links[other * count + index]}) {
      const double rtt_secs = 2 * std::chrono::duration<double>(link.delay).count();
      spec.bdp_bytes =
          std::max(spec.bdp_bytes, rtt_secs * link.rate_bps / 8 + static_cast<double>(link.queue_bytes()));
    }
  }
  spec.environment = {{"GEOCOMM_SITE", spec.name},
                      {"NNODES", std::to_string(count)},
                      {"NODE_RANK", std::to_string(index)},
                      {"MASTER_ADDR", address_text(0)},
                      {"MASTER_PORT", std::to_string(config_.master_port)},
                      {"GLOO_SOCKET_IFNAME", kTunName}};
  if (!config_.control_path.empty())
    spec.environment.emplace_back("GEOCOMM_WAN_CONTROL", config_.control_path);
  if (!config_.keys_folder.empty())
    spec.environment.emplace_back("GEOCOMM_KEYS", config_.keys_folder + "/" + spec.name);
  return spec;
}

Status Emulation::start(const std::vector<std::string>& command) {
  sigset_t handled;
  sigemptyset(&handled);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&handled, number);
  sigprocmask(SIG_BLOCK, &handled, nullptr);
  sigdelset(&handled, SIGCHLD);
  signal(SIGPIPE, SIG_IGN);
  signals_ = UniqueFd(signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return Status(StatusCode::Driver, "no descriptor for signals").with_errno(errno);
  GEOCOMM_RETURN_IF_ERROR(acquire_privileges());
  // Before any site is there: supervisors remove the socket when they end, which must not hit another run's.
  if (!config_.control_path.empty()) GEOCOMM_RETURN_IF_ERROR(control_.listen(config_.control_path));

  std::vector<UniqueFd> tuns;
  for (std::size_t i = 0; i < config_.sites.size(); ++i) {
    auto site = start_site(spec_of(i, command));
    if (!site) return site.status();
    sites_.push_back(std::move(site).value());
    tuns.push_back(std::move(sites_.back().tun));
    if (!config_.raw) {
      output_.add(config_.sites[i], std::move(sites_.back().out), STDOUT_FILENO);
      output_.add(config_.sites[i], std::move(sites_.back().err), STDERR_FILENO);
    }
  }
  // The sites are alike: what one of them was refused all were.
  const std::string& warnings = sites_[0].warnings;
  if (!warnings.empty()) say("warning: " + warnings.substr(0, warnings.size() - 1));
  router_ = std::make_unique<Router>(std::move(tuns), config_.links, config_.seed);
  GEOCOMM_RETURN_IF_ERROR(router_->start());
  GEOCOMM_RETURN_IF_ERROR(output_.start());
  started_ = Clock::now();
  for (const Site& site : sites_) release_site(site);
  return Status::ok();
}

int Emulation::wait() {
  std::vector<pollfd> fds;
  while (!all_ended() && !give_up_) {
    fds.assign({{signals_.get(), POLLIN, 0}, {interrupted_ ? -1 : lifeline_fd_, POLLIN, 0}});
    for (const Site& site : sites_) fds.push_back({site.wait_status ? -1 : site.socket.get(), POLLIN, 0});
    control_.watch(fds);
    int timeout_ms = -1;
    if (deadline_) {
      const auto left = std::chrono::ceil<milliseconds>(*deadline_ - Clock::now());
      timeout_ms = static_cast<int>(std::max<std::int64_t>(0, left.count()));
    }
    const int ready = poll(fds.data(), fds.size(), timeout_ms);
    if (deadline_ && Clock::now() >= *deadline_) on_deadline();
    if (ready <= 0) continue;

    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info))
      interrupt(static_cast<int>(info.ssi_signo));
    char ignored = 0;
    if (fds[1].revents != 0 && read(lifeline_fd_, &ignored, 1) <= 0) interrupt(SIGHUP);
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      if (fds[2 + i].revents == 0) continue;
      receive_site_status(sites_[i]);
      if (sites_[i].wait_status) note_end(sites_[i]);
    }
    control_.serve();
  }
  close_sites();
  router_->stop();
  drain_output();
  return exit_status_;
}

bool Emulation::all_ended() const {
  return std::all_of(sites_.begin(), sites_.end(),
                     [](const Site& site) { return site.wait_status.has_value(); });
}

void Emulation::note_end(const Site& site) {
  const int status = exit_status_of(*site.wait_status);
  if (status == 0 || phase_ == Phase::Terminating) return;
  const std::string what = WIFSIGNALED(*site.wait_status) ? core::str(" was ended by signal ", status - 128)
                                                          : core::str(" exited with status ", status);
  if (exit_status_ == 0) exit_status_ = status;
  if (config_.keep_going || phase_ != Phase::Running || all_ended()) {
    say(site.name + what);
    return;
  }
  phase_ = Phase::OneFailed;
  deadline_ = Clock::now() + config_.grace;
  say(core::str(site.name, what, "; the other sites have ", config_.grace.count() / 1000.0, " s to end"));
}

void Emulation::interrupt(int signal_number) {
  if (interrupted_) {
    say("interrupted again: killing all sites");
    give_up_ = true;
    return;
  }
  interrupted_ = true;
  exit_status_ = 128 + signal_number;
  terminate_all(core::str("interrupted by signal ", signal_number));
}

void Emulation::terminate_all(const std::string& why) {
  phase_ = Phase::Terminating;
  deadline_ = Clock::now() + config_.grace;
  std::string running;
  for (const Site& site : sites_) {
    if (site.wait_status) continue;
    running += " " + site.name;
    terminate_site(site);
  }
  say(core::str(why, "; SIGTERM to", running));
}

void Emulation::on_deadline() {
  deadline_.reset();
  if (phase_ == Phase::OneFailed) {
    terminate_all("not all sites ended");
  } else if (phase_ == Phase::Terminating) {
    say("killing the sites that did not heed SIGTERM");
    give_up_ = true;
  }
}

void Emulation::close_sites() {
  // All sockets first, so that the supervisors kill at the same time.
  for (Site& site : sites_) {
    if (!site.wait_status && give_up_) site.wait_status = SIGKILL;
    site.socket.reset();
  }
  for (Site& site : sites_) close_site(site);
}

void Emulation::drain_output() {
  std::optional<Clock::time_point> patience_ends;
  if (interrupted_) patience_ends = Clock::now() + kOutputPatience;
  while (!output_.done() && !(patience_ends && Clock::now() > *patience_ends)) {
    pollfd signals{signals_.get(), POLLIN, 0};
    if (poll(&signals, 1, 5) <= 0 || patience_ends) continue;
    patience_ends = Clock::now() + kOutputPatience;
  }
}

std::string Emulation::answer(std::string_view line) {
  const auto words = split_words(line);
  if (words.size() == 1 && words[0] == "stats") return report();
  if (words.size() < 4 || words[0] != "set") {
    return error_json("unknown request; possible are: stats | set <src> <dst> <key>=<value>...");
  }
  const auto src = config_.site_index(words[1]);
  const auto dst = config_.site_index(words[2]);
  if (!src || !dst || src == dst) {
    return error_json(core::str("'", words[1], "' and '", words[2], "' are not two sites of this run"));
  }
  LinkParams params = router_->snapshot(*src, *dst).params;
  const Status status = apply_link_words({words.begin() + 3, words.end()}, params);
  if (!status.is_ok()) return error_json(status.message());
  router_->change(*src, *dst, params);
  return R"({"ok":true})";
}

}  // namespace

Result<int> run_emulator(const WanConfig& config, const std::vector<std::string>& command, int lifeline_fd,
                         int report_fd) {
  Emulation emulation(config, lifeline_fd);
  GEOCOMM_RETURN_IF_ERROR(emulation.start(command));
  if (report_fd >= 0) dprintf(report_fd, "{\"ok\":true}\n");
  const int status = emulation.wait();
  if (report_fd >= 0) dprintf(report_fd, "%s\n", emulation.report().c_str());
  return status;
}

Status check_machine() {
  GEOCOMM_RETURN_IF_ERROR(acquire_privileges());
  std::string warnings;
  return enter_site_network(0, 0, warnings).status();
}

}  // namespace geocomm::emulator
