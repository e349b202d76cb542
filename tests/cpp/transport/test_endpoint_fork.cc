// Children that are forked from a process with an endpoint.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "../sanitizers.h"
#include "transport/io/socket.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

// Sockets, epolls and eventfds of this process by what they lead to.
std::map<std::string, int> connections() {
  std::map<std::string, int> found;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* const entry = ::readdir(folder)) {
    char text[PATH_MAX] = "";
    if (::readlinkat(::dirfd(folder), entry->d_name, text, sizeof text - 1) < 0) continue;
    const std::string kind = std::string(text).substr(0, std::string(text).find_first_of("[:"));
    if (kind == "socket" || std::strncmp(text, "anon_inode:[event", 17) == 0) ++found[text];
  }
  ::closedir(folder);
  return found;
}

// The exit status of a forked child that runs `body`.
int status_of_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(body());
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(EndpointFork, test_child_holds_no_descriptor_of_the_endpoint) {
  const auto before = connections();
  Pair pair;
  pair.connect();
  ASSERT_GT(connections().size(), before.size() + 4);
  EXPECT_EQ(status_of_child([&] { return connections() == before ? 0 : 1; }), 0);
  expect_transfer(*pair.high_channel, *pair.low_channel, 1, kMiB);
  expect_transfer(*pair.low_channel, *pair.high_channel, 2, kMiB);
}

// What the child opens gets the numbers of what was closed in it.
TEST(EndpointFork, test_object_of_the_parent_closes_nothing_in_the_child) {
  Fd parents = Fd::made_by([] { return ::socket(AF_INET, SOCK_STREAM, 0); });
  const int number = parents.get();
  EXPECT_EQ(status_of_child([&] {
              Fd own = Fd::made_by([] { return ::socket(AF_INET, SOCK_STREAM, 0); });
              if (own.get() != number) return 1;
              parents.reset();
              if (::fcntl(number, F_GETFD) < 0) return 2;
              own.reset();
              return ::fcntl(number, F_GETFD) < 0 ? 0 : 3;
            }),
            0);
  EXPECT_GE(::fcntl(number, F_GETFD), 0);
}

TEST(EndpointFork, test_child_forked_while_descriptors_come_and_go_holds_none) {
  const auto before = connections();
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!over) {
        std::vector<Fd> some;
        for (int n = 0; n < 8; ++n) {
          some.push_back(Fd::made_by([] { return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }));
        }
      }
    });
  }
  int bad = 0;
  for (int i = 0; i < 200; ++i) bad += status_of_child([&] { return connections() == before ? 0 : 1; }) != 0;
  over = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(bad, 0);
}

TEST(EndpointFork, test_shutdown_in_the_child_is_refused_and_leaves_the_links_alone) {
  Pair pair;
  pair.connect();
  EXPECT_EQ(status_of_child([&] {
              const Status status = pair.high->shutdown(patience());
              return status.code() == StatusCode::Aborted &&
                             status.message().find("forked") != std::string::npos
                         ? 0
                         : 1;
            }),
            0);
  expect_transfer(*pair.high_channel, *pair.low_channel, 1, kMiB);
  EXPECT_TRUE(pair.high->shutdown(patience()).is_ok());
}

// A process with an endpoint, forked before this one has threads, and a child of its own, which outlives it.
struct Family {
  Family() {
    EXPECT_EQ(::pipe(told), 0);
    parent = ::fork();
    if (parent != 0) return;
    EndpointOptions options;
    options.link_deadline = 30min;
    const auto endpoint = Endpoint::create(options);
    (*endpoint)->allow(token(1));
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(300);
      for (;;) ::pause();
    }
    Report report{(*endpoint)->id(), (*endpoint)->port(), child};
    (void)!::write(told[1], &report, sizeof report);
    for (;;) ::pause();
  }
  ~Family() {
    end_parent();
    if (report.child > 0) ::kill(report.child, SIGKILL);
    ::close(told[0]);
    ::close(told[1]);
  }
  void end_parent() {
    if (parent <= 0) return;
    ::kill(parent, SIGKILL);
    ::waitpid(std::exchange(parent, 0), nullptr, 0);
  }

  struct Report {
    ProcessId id{};
    std::uint16_t port = 0;
    pid_t child = 0;
  };
  int told[2] = {-1, -1};
  pid_t parent = 0;
  Report report;
};

TEST(EndpointFork, test_killed_process_is_lost_and_its_port_free_while_its_child_lives) {
  if (kUnderTsan) GTEST_SKIP() << "not under ThreadSanitizer: a forked child starts threads";
  Family family;
  ASSERT_EQ(::read(family.told[0], &family.report, sizeof family.report),
            static_cast<ssize_t>(sizeof family.report));
  EndpointOptions options;
  options.link_deadline = 30min;
  options.outbound_only = true;  // it dials
  auto endpoint = make_endpoint(options);
  const auto channel = *endpoint->connect(
      {family.report.id, "127.0.0.1", family.report.port, "rank 1 (the parent)"}, token(1));
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(channel->post_receive({1, 1}, 7, 1, sink).is_ok());
  ASSERT_TRUE(channel->wait_ready(patience()).is_ok()) << channel->status().to_string();
  family.end_parent();
  options.outbound_only = false;
  options.port = family.report.port;
  const auto successor = Endpoint::create(options);
  EXPECT_TRUE(successor.is_ok()) << successor.status().to_string();
  EXPECT_EQ(sink->wait().code(), StatusCode::PeerLost) << sink->wait().to_string();
  EXPECT_EQ(::kill(family.report.child, 0), 0);
}

}  // namespace
}  // namespace geocomm::transport::testing
