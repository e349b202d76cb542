// Peers that die or stop: real processes, ended by real signals.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "raw_peer.h"
#include "transport_fixture.h"

extern char** environ;

namespace geocomm::transport::testing {
namespace {

constexpr const char* kParentVariable = "GEOCOMM_TEST_PARENT";  // hexadecimal id, port

std::string hex(const ProcessId& id) {
  std::string text;
  for (const std::uint8_t byte : id) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

ProcessId unhex(const std::string& text) {
  ProcessId id{};
  for (std::size_t i = 0; i < id.size(); ++i) {
    id[i] = static_cast<std::uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

constexpr std::uint32_t kChunks = 1'000'000;
constexpr std::size_t kChunkBytes = 64 * 1024;
constexpr OpKey kFlood{1, 1};
constexpr OpKey kGo{1, 2};

// Not a test but the other process: it connects to its parent, waits for its word, then sends until it is
// killed.
TEST(LostPeerProcess, DISABLED_peer) {
  const char* parent = std::getenv(kParentVariable);
  if (parent == nullptr) return;
  const std::string text = parent;
  auto endpoint = make_endpoint();
  const PeerAddress address{unhex(text.substr(0, 32)),
                            "127.0.0.1",
                            static_cast<std::uint16_t>(std::stoi(text.substr(33))),
                            "parent",
                            "",
                            over_rdma()};
  const auto channel = *endpoint->connect(address, token(1));
  const std::string line = hex(endpoint->id()) + " " + std::to_string(endpoint->port()) + "\n";
  ASSERT_EQ(::write(STDOUT_FILENO, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  auto go = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(channel->post_receive(kGo, 7, 1, go).is_ok());
  ASSERT_TRUE(go->wait().is_ok());
  const auto data = pattern(kChunkBytes, 1);
  BoundedSender sender;
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    if (!sender.send(*channel, chunk_of(kFlood, data, i, kChunks)).is_ok()) break;
  }
}

// Counts chunks and puts them all in one place: posted before any is sent, so that only the IO thread writes.
class CountingSink : public CollectingSink {
 public:
  CountingSink() : CollectingSink(kChunks), memory_(kChunkBytes) {}
  core::Result<std::span<std::byte>> place(std::uint32_t, std::size_t bytes) override {
    return std::span<std::byte>(memory_).first(bytes);
  }

 private:
  std::vector<std::byte> memory_;
};

class LostPeer : public ::testing::Test {
 protected:
  void start(std::chrono::milliseconds link_deadline) {
    EndpointOptions options;
    options.link_deadline = link_deadline;
    endpoint_ = make_endpoint(options);
    endpoint_->allow(token(1));
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    Fd read_end(ends[0]);
    Fd write_end(ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
    const std::string variable =
        std::string(kParentVariable) + "=" + hex(endpoint_->id()) + ":" + std::to_string(endpoint_->port());
    std::vector<char*> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    environment.push_back(const_cast<char*>(variable.c_str()));
    environment.push_back(nullptr);
    const char* arguments[] = {"peer", "--gtest_filter=LostPeerProcess.*", "--gtest_also_run_disabled_tests",
                               nullptr};
    ASSERT_EQ(::posix_spawn(&child_, "/proc/self/exe", &actions, nullptr, const_cast<char**>(arguments),
                            environment.data()),
              0);
    posix_spawn_file_actions_destroy(&actions);
    write_end.reset();
    std::string line;
    // GoogleTest's own lines come before.
    for (;;) {
      char c = 0;
      ASSERT_EQ(::read(read_end.get(), &c, 1), 1) << "the child ended: " << line;
      if (c != '\n') {
        line += c;
      } else if (line.size() > 33 && line[32] == ' ' &&
                 line.find_first_not_of("0123456789abcdef ") == std::string::npos) {
        break;
      } else {
        line.clear();
      }
    }
    channel_ = *endpoint_->connect(
        {unhex(line.substr(0, 32)), "127.0.0.1", static_cast<std::uint16_t>(std::stoi(line.substr(33))),
         "rank 1 (the child)", "", over_rdma()},
        token(1));
    sink_ = std::make_shared<CountingSink>();
    ASSERT_TRUE(channel_->post_receive(kFlood, 7, kChunks, sink_).is_ok());
    ASSERT_TRUE(channel_->send(chunk_of(kGo, {})).is_ok());
    while (sink_->count() < 10) std::this_thread::sleep_for(1ms);
  }
  void TearDown() override {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
  }
  // Returns once it runs no more.
  void stop_child() {
    ASSERT_EQ(::kill(child_, SIGSTOP), 0);
    ASSERT_EQ(::waitpid(child_, nullptr, WUNTRACED), child_);
  }
  void expect_lost() {
    EXPECT_EQ(sink_->wait().code(), StatusCode::PeerLost) << sink_->wait().to_string();
    EXPECT_EQ(sink_->wait().peer(), "rank 1 (the child)");
    EXPECT_EQ(channel_->status().code(), StatusCode::PeerLost);
    EXPECT_EQ(channel_->send(chunk_of({1, 3}, {})).code(), StatusCode::PeerLost);
  }

  pid_t child_ = 0;
  std::unique_ptr<Endpoint> endpoint_;
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<CountingSink> sink_;
};

TEST_F(LostPeer, test_killed_peer_is_lost_and_named_long_before_the_deadline) {
  start(60min);
  ::kill(child_, SIGKILL);
  expect_lost();
  EXPECT_TRUE(endpoint_->shutdown(patience()).is_ok());
}

TEST_F(LostPeer, test_stopped_peer_is_lost_after_link_deadline) {
  start(4s);  // so long may it take to connect, too
  stop_child();
  expect_lost();
}

TEST_F(LostPeer, test_shutdown_with_a_stopped_peer_ends_at_its_deadline) {
  start(60min);
  stop_child();
  EXPECT_EQ(endpoint_->shutdown(Deadline::after(200ms)).code(), StatusCode::Timeout);
  EXPECT_EQ(sink_->wait().code(), StatusCode::Aborted);
}

TEST_F(LostPeer, test_shutdown_with_a_peer_killed_in_mid_close_does_not_hang) {
  start(60min);
  stop_child();
  std::thread killer([&] {
    std::this_thread::sleep_for(50ms);
    ::kill(child_, SIGKILL);
  });
  EXPECT_TRUE(endpoint_->shutdown(patience()).is_ok());
  killer.join();
  EXPECT_FALSE(sink_->wait().is_ok());
}

TEST(LostPeerIdle, test_idle_channel_outlives_link_deadline_by_its_heartbeats) {
  EndpointOptions options;
  options.link_deadline = 4s;
  Pair pair(options);
  pair.connect();
  std::this_thread::sleep_for(6s);
  EXPECT_TRUE(pair.low_channel->status().is_ok()) << pair.low_channel->status().to_string();
  EXPECT_TRUE(pair.high_channel->status().is_ok()) << pair.high_channel->status().to_string();
}

TEST_F(LostPeer, test_briefly_stopped_peer_is_not_lost) {
  start(20s);
  stop_child();
  std::this_thread::sleep_for(300ms);
  const std::size_t count = sink_->count();
  ::kill(child_, SIGCONT);
  const auto end = patience();
  while (sink_->count() < count + 10 && !end.expired()) std::this_thread::sleep_for(1ms);
  EXPECT_GE(sink_->count(), count + 10);
  EXPECT_TRUE(channel_->status().is_ok());
}

}  // namespace
}  // namespace geocomm::transport::testing
