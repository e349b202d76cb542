// How processes find each other, and what they say when they do not.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "../needs.h"
#include "core/crc32c.h"
#include "logged_warnings.h"
#include "raw_peer.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

TEST(EndpointConnect, test_acceptor_connecting_first_gets_ready) {
  Pair pair;
  pair.low_channel = *pair.low->connect(address_of(*pair.high, "high"), token(1));
  EXPECT_EQ(pair.low_channel->wait_ready(Deadline::after(20ms)).code(), StatusCode::Timeout);
  pair.high_channel = *pair.high->connect(address_of(*pair.low, "low"), token(1));
  ASSERT_TRUE(pair.low_channel->wait_ready(patience()).is_ok());
  expect_transfer(*pair.low_channel, *pair.high_channel, 1, 300'000);
}

TEST(EndpointConnect, test_dialer_connecting_first_gets_ready) {
  Pair pair;
  pair.high_channel = *pair.high->connect(address_of(*pair.low, "low"), token(1));
  EXPECT_EQ(pair.high_channel->wait_ready(Deadline::after(20ms)).code(), StatusCode::Timeout);
  pair.low_channel = *pair.low->connect(address_of(*pair.high, "high"), token(1));
  ASSERT_TRUE(pair.high_channel->wait_ready(patience()).is_ok());
  expect_transfer(*pair.high_channel, *pair.low_channel, 1, 300'000);
}

TEST(EndpointConnect, test_unknown_token_then_allowed_connects) {
  Pair pair;
  pair.low->allow(token(9));
  pair.high_channel = *pair.high->connect(address_of(*pair.low, "low"), token(1));
  EXPECT_EQ(pair.high_channel->wait_ready(Deadline::after(100ms)).code(), StatusCode::Timeout);
  EXPECT_TRUE(pair.low->channels().empty());
  pair.low->allow(token(1));
  ASSERT_TRUE(pair.high_channel->wait_ready(patience()).is_ok());
  // The acceptor has not asked for it yet: data waits in the channel that the peer opened.
  const auto data = pattern(1000, 1);
  ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, data)).is_ok());
  while (pair.low->channels().empty() || pair.low->channels()[0]->stats().payload_received < 1000) {
    std::this_thread::sleep_for(1ms);
  }
  pair.low_channel = *pair.low->connect(address_of(*pair.high, "rank 1"), token(1));
  EXPECT_EQ(pair.low_channel->peer(), "rank 1");
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 1, sink).is_ok());
  ASSERT_TRUE(sink->wait().is_ok());
  EXPECT_EQ(sink->data(), data);
}

TEST(EndpointConnect, test_second_connect_returns_the_same_channel) {
  Pair pair;
  pair.connect();
  EXPECT_EQ(*pair.low->connect(address_of(*pair.high, "again"), token(2)), pair.low_channel);
  EXPECT_EQ(pair.low->channels().size(), 1U);
}

TEST(EndpointConnect, test_token_refused_until_deadline_is_auth_failure) {
  EndpointOptions options;
  options.link_deadline = 300ms;
  Pair pair(options);
  const auto channel = *pair.high->connect(address_of(*pair.low, "rank 0"), token(1));
  const Status status = channel->wait_ready(patience());
  EXPECT_EQ(status.code(), StatusCode::Authentication) << status.to_string();
  EXPECT_EQ(status.peer(), "rank 0");
}

// Its process has listened before others were told its address.
TEST(EndpointConnect, test_nobody_listening_is_a_lost_peer_long_before_the_deadline) {
  EndpointOptions options;
  options.believed_refusal = 50ms;
  auto endpoint = make_endpoint(options);
  std::uint16_t free_port = 0;
  {
    free_port = make_endpoint()->port();
  }
  auto sink = std::make_shared<CollectingSink>(1);
  SentLatch sent;
  const auto channel = *endpoint->connect({id_of(0), "127.0.0.1", free_port, "rank 3 (site b)"}, token(1));
  ASSERT_TRUE(channel->post_receive({1, 1}, 7, 1, sink).is_ok());
  ASSERT_TRUE(channel->send(chunk_of({1, 1}, pattern(10, 1)), sent.callback()).is_ok());
  const Status status = channel->wait_ready(patience());
  EXPECT_EQ(status.code(), StatusCode::PeerLost);
  EXPECT_EQ(status.peer(), "rank 3 (site b)");
  EXPECT_EQ(status.sys_errno(), ECONNREFUSED) << status.to_string();
  EXPECT_EQ(sink->wait().code(), StatusCode::PeerLost);
  EXPECT_EQ(sent.wait(1).at(0).code(), StatusCode::PeerLost);
  EXPECT_FALSE(channel->send(chunk_of({1, 2}, {})).is_ok());
}

TEST(EndpointConnect, test_attempt_that_the_deadline_cuts_short_leaves_the_reason_of_the_one_before) {
  EndpointOptions options;
  options.link_deadline = 1s;
  auto endpoint = make_endpoint(options);
  std::uint16_t free_port = 0;
  {
    free_port = make_endpoint()->port();
  }
  const auto channel = *endpoint->connect({id_of(0), "127.0.0.1", free_port, "rank 3 (site b)"}, token(1));
  std::this_thread::sleep_for(150ms);
  const auto mute = listen_on(*SocketAddress::parse("127.0.0.1", free_port));
  ASSERT_TRUE(mute.is_ok()) << mute.status().to_string();
  const Status status = channel->wait_ready(patience());
  EXPECT_EQ(status.code(), StatusCode::PeerLost);
  EXPECT_EQ(status.sys_errno(), ECONNREFUSED) << status.to_string();
}

TEST(EndpointConnect, test_who_waits_for_the_first_connection_says_so) {
  EndpointOptions options;
  options.link_deadline = 400ms;
  auto endpoint = make_endpoint(options);
  LoggedWarnings warnings;
  const auto channel = *endpoint->connect({id_of(0xFF), "", 0, "rank 3"}, token(1));
  EXPECT_EQ(channel->wait_ready(patience()).code(), StatusCode::Network);
  EXPECT_TRUE(warnings.has("not connected to rank 3 for 0.2 s; trying for up to 0.4 s (link_deadline)"))
      << warnings.text();
}

TEST(EndpointConnect, test_peer_that_never_dials_is_network_error) {
  EndpointOptions options;
  options.link_deadline = 200ms;
  auto endpoint = make_endpoint(options);
  const auto channel = *endpoint->connect({id_of(0xFF), "127.0.0.1", 1, "rank 3"}, token(1));
  EXPECT_EQ(channel->wait_ready(patience()).code(), StatusCode::Network);
}

TEST(EndpointConnect, test_other_process_at_the_address_is_named_at_once) {
  Pair pair;
  pair.low->allow(token(1));
  ProcessId stale = pair.low->id();
  stale[15] ^= 1;
  stale[0] = 0;
  const auto channel = *pair.high->connect({stale, "127.0.0.1", pair.low->port(), "rank 0"}, token(1));
  EXPECT_EQ(channel->wait_ready(patience()).code(), StatusCode::Network);
}

TEST(EndpointConnect, test_something_else_listening_is_network_error) {
  EndpointOptions options;
  options.link_deadline = 300ms;
  auto endpoint = make_endpoint(options);
  auto listener = listen_on(*SocketAddress::parse("127.0.0.1", 0));
  ASSERT_TRUE(listener.is_ok());
  std::atomic<bool> stop{false};
  std::thread greeter([&] {
    while (!stop) {
      Fd fd(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (fd.valid()) {
        (void)::send(fd.get(), "SSH-2.0-OpenSSH_9.2\r\n", 21, MSG_NOSIGNAL);
      }
      std::this_thread::sleep_for(1ms);
    }
  });
  const auto port = SocketAddress::local_of(listener->get()).port();
  const auto channel = *endpoint->connect({id_of(0), "127.0.0.1", port, "rank 0"}, token(1));
  EXPECT_EQ(channel->wait_ready(patience()).code(), StatusCode::Network);
  stop = true;
  greeter.join();
}

TEST(EndpointConnect, test_name_is_resolved) {
  Pair pair;
  pair.low->allow(token(1));
  const auto channel = *pair.high->connect({pair.low->id(), "localhost", pair.low->port(), "low"}, token(1));
  EXPECT_TRUE(channel->wait_ready(patience()).is_ok()) << channel->status().to_string();
}

// No thread can be made: each would get a stack that no memory holds. (A limit on threads does not bind
// root.)
TEST(EndpointConnect, test_name_is_resolved_once_there_are_threads_again) {
  Pair pair;
  pair.low->allow(token(1));
  pthread_attr_t usual;
  pthread_attr_t enormous;
  ASSERT_EQ(::pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(::pthread_getattr_default_np(&enormous), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&enormous, std::size_t{1} << 47), 0);
  ASSERT_EQ(::pthread_setattr_default_np(&enormous), 0);
  const auto channel = *pair.high->connect({pair.low->id(), "localhost", pair.low->port(), "low"}, token(1));
  EXPECT_EQ(channel->wait_ready(Deadline::after(200ms)).code(), StatusCode::Timeout);
  ASSERT_EQ(::pthread_setattr_default_np(&usual), 0);
  EXPECT_TRUE(channel->wait_ready(patience()).is_ok()) << channel->status().to_string();
  ::pthread_attr_destroy(&usual);
  ::pthread_attr_destroy(&enormous);
}

// Moves this process to a network of its own, where the only name server takes every question and never
// answers: the resolver asks it for a minute and a half.
bool enter_network_of_a_mute_name_server() {
  if (::unshare(CLONE_NEWNS | CLONE_NEWNET) != 0 &&
      ::unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET) != 0) {
    return false;
  }
  const Fd server(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(53);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string path = ::testing::TempDir() + "geocomm-resolv-XXXXXX";
  const Fd file(::mkstemp(path.data()));
  std::ofstream(path) << "nameserver 127.0.0.1\noptions timeout:30 attempts:3\n";
  const bool done = ::ioctl(server.get(), SIOCSIFFLAGS, &loopback) == 0 &&
                    ::bind(server.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                    ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                    ::mount(path.c_str(), "/etc/resolv.conf", nullptr, MS_BIND, nullptr) == 0;
  ::unlink(path.c_str());
  return done && ::dup(server.get()) >= 0;  // for as long as the process lives
}

// What the name servers say, or do not say, is a failed attempt as any other: the deadline holds.
TEST(EndpointConnect, test_name_servers_that_never_answer_do_not_hold_the_deadline) {
  constexpr int kCannot = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    if (!enter_network_of_a_mute_name_server()) ::_exit(kCannot);
    EndpointOptions options;
    options.security = Security::Insecure;
    options.link_deadline = 1s;
    const auto endpoint = make_endpoint(options);
    const auto channel = *endpoint->connect({id_of(0), "site-b.example", 4000, "rank 3 (site b)"}, token(1));
    const Status status = channel->wait_ready(Deadline::after(20s));
    EXPECT_EQ(status.code(), StatusCode::Network) << status.to_string();
    EXPECT_NE(status.message().find("name servers for 'site-b.example'"), std::string::npos)
        << status.to_string();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int ended = 0;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  GEOCOMM_NEEDS(!WIFEXITED(ended) || WEXITSTATUS(ended) != kCannot, "the right to unshare and mount");
  EXPECT_EQ(ended, 0);
}

TEST(EndpointConnect, test_ipv6_loopback_connects) {
  EndpointOptions options;
  options.bind_address = "::1";
  GEOCOMM_NEEDS(Endpoint::create(options).is_ok(), "IPv6");
  Pair pair(options);
  pair.low->allow(token(1));
  const auto channel = *pair.high->connect({pair.low->id(), "::1", pair.low->port(), "low"}, token(1));
  EXPECT_TRUE(channel->wait_ready(patience()).is_ok()) << channel->status().to_string();
}

TEST(EndpointConnect, test_insecure_listens_on_all_interfaces) {
  EndpointOptions options;
  options.security = Security::Insecure;
  Pair pair(options);
  pair.connect();
  expect_transfer(*pair.low_channel, *pair.high_channel, 1, 300'000);
}

TEST(EndpointConnect, test_required_security_refuses_other_addresses) {
  auto endpoint = make_endpoint();
  for (const std::uint8_t peer : {0x00, 0xFF}) {
    const auto refused = endpoint->connect({id_of(peer), "192.0.2.1", 4000, "rank 1"}, token(1));
    EXPECT_EQ(refused.status().code(), StatusCode::Authentication);
    EXPECT_EQ(refused.status().peer(), "rank 1");
  }
  EndpointOptions options;
  options.bind_address = "192.0.2.1";
  EXPECT_EQ(Endpoint::create(options).status().code(), StatusCode::Authentication);
}

// An address of this machine that is not loopback, if it has one.
std::optional<SocketAddress> outer_address(std::uint16_t port) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return std::nullopt;
  std::optional<SocketAddress> found;
  for (const ifaddrs* one = all; one != nullptr && !found; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_in address;
    std::memcpy(&address, one->ifa_addr, sizeof address);
    address.sin_port = htons(port);
    const SocketAddress candidate(reinterpret_cast<const sockaddr*>(&address), sizeof address);
    if (!candidate.is_loopback()) found = candidate;
  }
  ::freeifaddrs(all);
  return found;
}

// spec channel 2.4: "both sides MUST refuse addresses beyond loopback."
TEST(EndpointConnect, test_required_security_refuses_peers_from_other_addresses) {
  EndpointOptions options;
  options.bind_address = "0.0.0.0";
  auto victim = make_endpoint(options);
  victim->allow(token(1));
  const auto address = outer_address(victim->port());
  GEOCOMM_NEEDS(address.has_value(), "an address of this machine beside loopback");
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(fd.get(), address->get(), address->size()), 0);
  RawConnection raw(std::move(fd));
  ASSERT_TRUE(raw.send(raw_hello(*victim, 0, 1, token(1))));
  const auto refuse = raw.read_header();
  ASSERT_TRUE(refuse.has_value());
  EXPECT_EQ(refuse->type, static_cast<std::uint8_t>(PacketType::Refuse));
  EXPECT_EQ(refuse->code, static_cast<std::uint16_t>(StatusCode::Authentication));
}

TEST(EndpointConnect, test_own_id_is_invalid) {
  auto endpoint = make_endpoint();
  EXPECT_EQ(endpoint->connect(address_of(*endpoint, "self"), token(1)).status().code(),
            StatusCode::InvalidArgument);
}

TEST(EndpointConnect, test_pinned_port_in_use_is_network_error) {
  auto first = make_endpoint();
  EndpointOptions options;
  options.port = first->port();
  options.port_patience = 50ms;
  const auto second = Endpoint::create(options);
  EXPECT_EQ(second.status().code(), StatusCode::Network);
  EXPECT_EQ(second.status().sys_errno(), EADDRINUSE);
}

// The process before it may be about to end.
TEST(EndpointConnect, test_pinned_port_that_comes_free_is_waited_for) {
  EndpointOptions options;
  auto first = Endpoint::create(options);
  ASSERT_TRUE(first.is_ok());
  options.port = (*first)->port();
  options.port_patience = 60s;
  std::thread ends([&] {
    std::this_thread::sleep_for(300ms);
    first->reset();
  });
  EXPECT_TRUE(Endpoint::create(options).is_ok());
  ends.join();
}

TEST(EndpointConnect, test_pinned_port_is_free_again_after_shutdown) {
  EndpointOptions options;
  {
    Pair pair;
    pair.connect();
    options.port = pair.low->port();
  }
  EXPECT_TRUE(Endpoint::create(options).is_ok());
}

TEST(EndpointConnect, test_bad_options_are_refused) {
  EndpointOptions streams;
  streams.streams = 65;
  EXPECT_EQ(Endpoint::create(streams).status().code(), StatusCode::InvalidArgument);
  EndpointOptions address;
  address.bind_address = "no address";
  EXPECT_EQ(Endpoint::create(address).status().code(), StatusCode::InvalidArgument);
}

TEST(EndpointConnect, test_dialer_of_other_version_fails_on_both_sides) {
  auto victim = make_endpoint();
  victim->allow(token(1));
  const auto channel = *victim->connect({id_of(0xFF), "127.0.0.1", 1, "rank 1"}, token(1));
  RawConnection raw(victim->port());
  WireHeader header = make_header(PacketType::Hello);
  header.length = sizeof(HelloPayload);
  HeaderBytes bytes = encode_header(header);
  bytes[4] = std::byte{9};
  const std::uint32_t crc = core::crc32c(std::span(bytes).first(60));
  std::memcpy(bytes.data() + 60, &crc, 4);
  const HelloPayload hello = raw_hello(*victim, 0, 1, token(1));
  ASSERT_TRUE(raw.send(bytes.data(), bytes.size()) && raw.send(&hello, sizeof hello));
  const auto refuse = raw.read_header();
  ASSERT_TRUE(refuse.has_value());
  EXPECT_EQ(refuse->type, static_cast<std::uint8_t>(PacketType::Refuse));
  EXPECT_EQ(refuse->code, static_cast<std::uint16_t>(StatusCode::VersionMismatch));
  EXPECT_EQ(refuse->version, kWireVersion);
  EXPECT_TRUE(raw.closed_by_peer());
  EXPECT_EQ(channel->wait_ready(patience()).code(), StatusCode::VersionMismatch);
}

TEST(EndpointConnect, test_acceptor_of_other_version_fails_the_dialer) {
  auto endpoint = make_endpoint();
  auto listener = listen_on(*SocketAddress::parse("127.0.0.1", 0));
  ASSERT_TRUE(listener.is_ok());
  const auto port = SocketAddress::local_of(listener->get()).port();
  const auto channel = *endpoint->connect({id_of(0), "127.0.0.1", port, "rank 0"}, token(1));
  Fd accepted;
  while (!accepted.valid()) accepted = Fd(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  RawConnection raw(std::move(accepted));
  ASSERT_TRUE(raw.read(kHeaderBytes + sizeof(HelloPayload)).has_value());
  WireHeader header = make_header(PacketType::Refuse);
  header.code = static_cast<std::uint16_t>(StatusCode::VersionMismatch);
  header.length = 2;
  HeaderBytes bytes = encode_header(header);
  bytes[4] = std::byte{9};
  const std::uint32_t crc = core::crc32c(std::span(bytes).first(60));
  std::memcpy(bytes.data() + 60, &crc, 4);
  ASSERT_TRUE(raw.send(bytes.data(), bytes.size()) && raw.send("no", 2));
  EXPECT_EQ(channel->wait_ready(patience()).code(), StatusCode::VersionMismatch);
}

TEST(EndpointConnect, test_descriptors_running_out_neither_spins_nor_ends_the_listener) {
  auto victim = make_endpoint();
  victim->allow(token(1));
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  std::vector<Fd> hoard;
  std::atomic<int> warnings{0};
  core::set_log_level(core::LogLevel::Warning);
  core::set_log_sink([&](core::LogLevel, const std::string&) { ++warnings; });
  rlimit few = old;
  few.rlim_cur = 200;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  Fd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  for (Fd fd(::dup(0)); fd.valid(); fd = Fd(::dup(0))) hoard.push_back(std::move(fd));
  const auto address = *SocketAddress::parse("127.0.0.1", victim->port());
  ASSERT_EQ(::connect(client.get(), address.get(), address.size()), 0);
  // The listener warns each time it looks in vain.
  while (warnings == 0) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(50ms);
  EXPECT_LT(warnings, 10);
  hoard.clear();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  core::set_log_sink(nullptr);
  core::set_log_level(core::LogLevel::Error);
  RawConnection raw(std::move(client));
  ASSERT_TRUE(raw.send(raw_hello(*victim, 0, 1, token(1))));
  const auto welcome = raw.read_header();
  ASSERT_TRUE(welcome.has_value());
  EXPECT_EQ(welcome->type, static_cast<std::uint8_t>(PacketType::Welcome));
}

}  // namespace
}  // namespace geocomm::transport::testing
