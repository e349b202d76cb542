// RDMA as far as a machine without it allows: UCX over its own TCP, real links broken and abused. The suites
// of what channels promise run over UCX as well (CMakeLists.txt beside this folder).
#include <dirent.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>

#include "../needs.h"
#include "raw_peer.h"
#include "tls_stranger.h"
#include "transport/io/socket.h"
#include "transport/rdma/rdma_fabric.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

class RdmaChannel : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef GEOCOMM_UCX_PLUGIN
    constexpr bool has_ucx = true;
#else
    constexpr bool has_ucx = false;
#endif
    GEOCOMM_NEEDS(has_ucx, "UCX in the build (libucx-dev)");
    ::setenv("UCX_TLS", "tcp", 0);
    ::setenv("UCX_LOG_LEVEL", "fatal", 0);
    ::setenv("UCX_MEM_EVENTS", "n", 0);
  }
  void TearDown() override {
    ::unsetenv("UCX_ZCOPY_THRESH");
    ::unsetenv("UCX_RNDV_THRESH");
  }
  static EndpointOptions options() {
    EndpointOptions options;
    options.rdma = rdma_of_tests();
    return options;
  }
  static PeerAddress rdma_address_of(const Endpoint& endpoint, std::string description) {
    PeerAddress address = address_of(endpoint, std::move(description));
    address.rdma = true;
    return address;
  }
  static void connect(Pair& pair) {
    pair.low_channel = *pair.low->connect(rdma_address_of(*pair.high, "rank 1 (high)"), token(1));
    pair.high_channel = *pair.high->connect(rdma_address_of(*pair.low, "rank 0 (low)"), token(1));
    ASSERT_TRUE(pair.low_channel->wait_ready(patience()).is_ok()) << pair.low_channel->status().to_string();
    ASSERT_TRUE(pair.high_channel->wait_ready(patience()).is_ok());
  }
};

TEST_F(RdmaChannel, test_segments_go_over_the_fabric_and_stats_say_so) {
  Pair pair(options());
  connect(pair);
  expect_transfer(*pair.high_channel, *pair.low_channel, 1, 5 * kMiB + 3);
  expect_transfer(*pair.low_channel, *pair.high_channel, 2, 100);
  const ChannelStats stats = pair.high_channel->stats();
  EXPECT_EQ(stats.transport.substr(0, 6), "rdma (") << stats.transport;
  EXPECT_EQ(stats.streams, 1U);
  EXPECT_GE(stats.payload_sent, 5 * kMiB);
  EXPECT_GE(stats.bytes_sent, 5 * kMiB);
}

TEST_F(RdmaChannel, test_one_endpoint_has_channels_of_both_kinds) {
  Pair pair(options());
  connect(pair);
  const auto third = make_endpoint();
  const auto to_third = *pair.low->connect(address_of(*third, "rank 2"), token(1));
  const auto from_third = *third->connect(address_of(*pair.low, "rank 0"), token(1));
  expect_transfer(*from_third, *to_third, 1, 3 * kMiB);
  expect_transfer(*pair.high_channel, *pair.low_channel, 1, 3 * kMiB);
  EXPECT_EQ(to_third->stats().transport, over_rdma() ? pair.low_channel->stats().transport : "tcp");
  EXPECT_NE(pair.low_channel->stats().transport, "tcp");
}

TEST_F(RdmaChannel, test_ends_that_disagree_are_refused_whoever_comes_first) {
  if (over_rdma()) GTEST_SKIP() << "all channels of this run are RDMA's";
  for (const bool dialer_wants : {true, false}) {
    Pair pair(options());
    PeerAddress to_low = address_of(*pair.low, "rank 0 (low)");
    PeerAddress to_high = address_of(*pair.high, "rank 1 (high)");
    (dialer_wants ? to_low : to_high).rdma = true;
    pair.high_channel = *pair.high->connect(to_low, token(1));
    std::this_thread::sleep_for(50ms);
    pair.low_channel = *pair.low->connect(to_high, token(1));
    EXPECT_EQ(pair.high_channel->wait_ready(patience()).code(), StatusCode::InvalidArgument);
    EXPECT_NE(pair.high_channel->status().message().find("GEOCOMM_TRANSPORT"), std::string::npos);
  }
}

TEST_F(RdmaChannel, test_endpoint_without_rdma_refuses_it) {
  if (over_rdma()) GTEST_SKIP() << "all endpoints of this run have it";
  const auto with = make_endpoint(options());
  auto without = make_endpoint();
  while (with->id() < without->id()) without = make_endpoint();
  EXPECT_EQ(without->connect(rdma_address_of(*with, "rank 0"), token(1)).status().code(),
            StatusCode::InvalidArgument);
  without->allow(token(1));
  const auto channel = *with->connect(rdma_address_of(*without, "rank 1"), token(1));
  EXPECT_EQ(channel->wait_ready(patience()).code(), StatusCode::InvalidArgument);
}

TEST_F(RdmaChannel, test_required_security_wants_a_trusted_fabric) {
  EndpointOptions untrusted = options();
  untrusted.rdma.trusted = false;
  const auto refused = Endpoint::create(untrusted);
  EXPECT_EQ(refused.status().code(), StatusCode::Authentication);
  EXPECT_NE(refused.status().message().find("GEOCOMM_RDMA_TRUSTED"), std::string::npos);
  untrusted.security = Security::Insecure;
  EXPECT_TRUE(Endpoint::create(untrusted).is_ok());
}

TEST_F(RdmaChannel, test_machine_without_rdma_is_told_what_was_found) {
  EndpointOptions strict = options();
  strict.rdma.allow_tcp = false;
  const auto endpoint = Endpoint::create(strict);
  if (endpoint.is_ok()) GTEST_SKIP() << "this machine has RDMA";
  EXPECT_EQ(endpoint.status().code(), StatusCode::Unsupported);
  const std::string found = std::getenv("UCX_TLS");
  EXPECT_NE(endpoint.status().message().find(found.substr(0, found.find(','))), std::string::npos)
      << endpoint.status().message();
}

TEST(RdmaPlugin, test_missing_plugin_names_the_package) {
  EndpointOptions options;
  options.rdma = {.library = "/nonexistent/libgeocomm_ucx.so", .trusted = true, .allow_tcp = true};
  const auto endpoint = Endpoint::create(options);
  EXPECT_EQ(endpoint.status().code(), StatusCode::Unsupported);
  EXPECT_NE(endpoint.status().message().find("libucx-dev"), std::string::npos);
}

// Connected TCP sockets of this process, but those from or to `port`: UCX's.
std::set<int> other_sockets(std::uint16_t port) {
  std::set<int> found;
  DIR* const dir = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(dir)) {
    const int fd = std::atoi(entry->d_name);
    const SocketAddress peer = SocketAddress::peer_of(fd);
    const SocketAddress local = SocketAddress::local_of(fd);
    if (peer.family() == AF_UNSPEC || peer.family() == AF_UNIX || peer.port() == port || local.port() == port)
      continue;
    found.insert(fd);
  }
  ::closedir(dir);
  return found;
}

TEST_F(RdmaChannel, test_broken_fabric_links_are_made_again_and_lose_nothing) {
  if (std::string(std::getenv("UCX_TLS")) != "tcp") GTEST_SKIP() << "only TCP can be cut from here";
  // UCX 1.13 asserts where its TCP breaks in the middle of a zero-copy send.
  ::setenv("UCX_ZCOPY_THRESH", "inf", 1);
  ::setenv("UCX_RNDV_THRESH", "inf", 1);
  Pair pair(options());
  connect(pair);
  constexpr std::uint32_t kChunks = 200;
  auto sink = std::make_shared<CollectingSink>(kChunks);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, kChunks, sink).is_ok());
  BoundedSender bounded;
  std::thread sender([&] {
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      EXPECT_TRUE(
          bounded.send(*pair.high_channel, chunk_of({1, 1}, pattern(kMiB + i, i), i, kChunks)).is_ok());
    }
  });
  std::size_t cuts = 0;
  for (std::size_t next = 20; next < kChunks - 20; next += 40) {
    while (sink->count() < next && !sink->error()) std::this_thread::sleep_for(1ms);
    for (const int fd : other_sockets(pair.low->port())) cuts += ::shutdown(fd, SHUT_RDWR) == 0 ? 1 : 0;
  }
  sender.join();
  const Status status = sink->wait();
  ASSERT_TRUE(status.is_ok()) << status.to_string();
  for (std::uint32_t i = 0; i < kChunks; ++i) EXPECT_EQ(sink->data(i), pattern(kMiB + i, i)) << i;
  EXPECT_GT(cuts, 0U);
  EXPECT_GE(pair.high_channel->stats().resumes, 1U);
}

// Knows the protocol, speaks it badly: TCP by hand, and a fabric link of its own.
class HostileRdmaPeer : public RdmaChannel, public RdmaLinkDelegate {
 protected:
  void SetUp() override {
    RdmaChannel::SetUp();
    if (IsSkipped()) return;
    victim_ = make_endpoint(options());
    victim_->allow(token(1));
    HelloPayload hello = raw_hello(*victim_, 0, 1, token(1));
    hello.data_path = DataPath::Rdma;
    control_ = std::make_unique<RawConnection>(open_stream(*victim_, hello));
    hello.stream = 1;
    data_ = std::make_unique<RawConnection>(open_stream(*victim_, hello));
    PeerAddress address;
    address.id = id_of(0xFF);
    address.description = "rank 1 (hostile)";
    address.rdma = true;
    channel_ = *victim_->connect(address, token(1));
    auto fabric = load_rdma_fabric(rdma_of_tests());
    ASSERT_TRUE(fabric.is_ok()) << fabric.status().to_string();
    fabric_ = std::move(fabric).value();
    auto link = fabric_->open_link(*this);
    ASSERT_TRUE(link.is_ok());
    link_ = std::move(link).value();
  }
  std::optional<RdmaIncoming> on_message(std::span<const std::byte>, std::size_t) override {
    return std::nullopt;
  }

  // Tells the victim our address and connects to its.
  void meet() {
    const auto reply = data_->read_header();
    ASSERT_TRUE(reply && reply->type == static_cast<std::uint8_t>(PacketType::RdmaAddress));
    token_ = reply->op;
    const auto address = data_->read(reply->length);
    ASSERT_TRUE(address.has_value());
    ASSERT_TRUE(link_->connect(*address).is_ok());
    send_address(link_->address());
  }
  void send_address(std::span<const std::byte> address) {
    WireHeader header = make_header(PacketType::RdmaAddress);
    header.length = static_cast<std::uint32_t>(address.size());
    ASSERT_TRUE(data_->send(header));
    (void)data_->send(address.data(), address.size());
  }
  void send(const WireHeader& header, std::size_t payload_bytes, std::uint64_t token, std::size_t cut = 0) {
    const HeaderBytes bytes = encode_header(header);
    RdmaOutgoing message;
    std::memcpy(message.header.data(), &token, sizeof token);
    std::memcpy(message.header.data() + sizeof token, bytes.data(), bytes.size() - cut);
    payload_ = pattern(payload_bytes, 1);
    message.payload = payload_;
    bool sent = false;
    message.on_sent = [&] { sent = true; };
    link_->send(std::move(message));
    const auto deadline = Deadline::after(20s);
    while (!sent && !deadline.expired()) {
      if (!link_->progress().is_ok()) break;
    }
    link_->silence();
  }
  void expect_corrupt() {
    const auto deadline = patience();
    while (channel_->status().is_ok() && !deadline.expired()) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(channel_->status().code(), StatusCode::CorruptData) << channel_->status().to_string();
  }

  std::unique_ptr<Endpoint> victim_;
  std::unique_ptr<RawConnection> control_;
  std::unique_ptr<RawConnection> data_;
  std::shared_ptr<Channel> channel_;
  std::vector<std::byte> payload_;
  std::unique_ptr<RdmaFabric> fabric_;
  std::unique_ptr<RdmaLink> link_;
  std::uint64_t token_ = 0;
};

TEST_F(HostileRdmaPeer, test_segment_with_another_length_than_its_header_says_is_corrupt) {
  meet();
  send(segment_header(1, 1000), 999, token_);
  expect_corrupt();
}

TEST_F(HostileRdmaPeer, test_large_segment_with_another_length_is_corrupt) {
  meet();
  send(segment_header(1, 200'000), 250'000, token_);
  expect_corrupt();
}

TEST_F(HostileRdmaPeer, test_damaged_header_is_corrupt) {
  meet();
  send(segment_header(1, 1000), 1000, token_, /*cut=*/4);
  expect_corrupt();
}

TEST_F(HostileRdmaPeer, test_control_packet_over_the_fabric_is_corrupt) {
  meet();
  send(control_header(PacketType::Grant, 1), 0, token_);
  expect_corrupt();
}

TEST_F(HostileRdmaPeer, test_message_without_the_token_of_the_link_is_thrown_away) {
  meet();
  send(segment_header(1, 1000), 999, token_ + 1);
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(channel_->post_receive({1, 1}, 7, 1, sink).is_ok());
  std::this_thread::sleep_for(100ms);
  EXPECT_TRUE(channel_->status().is_ok()) << channel_->status().to_string();
  EXPECT_EQ(sink->count(), 0U);
}

TEST_F(HostileRdmaPeer, test_segment_over_tcp_is_corrupt) {
  ASSERT_TRUE(data_->send(segment_header(1, 1000)));
  expect_corrupt();
}

TEST_F(HostileRdmaPeer, test_address_that_is_too_long_is_corrupt) {
  WireHeader header = make_header(PacketType::RdmaAddress);
  header.length = kMaxRdmaAddressBytes + 1;
  ASSERT_TRUE(data_->send(header));
  expect_corrupt();
}

TEST_F(HostileRdmaPeer, test_bytes_behind_the_address_are_corrupt) {
  meet();
  ASSERT_TRUE(data_->send("x", 1));
  expect_corrupt();
}

// The address leads nowhere, again and again, while the control stream is in best health.
TEST_F(HostileRdmaPeer, test_fabric_that_never_works_is_a_lost_peer_after_the_deadline) {
  EndpointOptions hasty = options();
  hasty.link_deadline = 1500ms;
  const auto victim = make_endpoint(hasty);
  victim->allow(token(1));
  HelloPayload hello = raw_hello(*victim, 0, 1, token(1));
  hello.data_path = DataPath::Rdma;
  RawConnection control = open_stream(*victim, hello);
  PeerAddress address;
  address.id = id_of(0xFF);
  address.description = "rank 1 (hostile)";
  address.rdma = true;
  const auto channel = *victim->connect(address, token(1));
  const std::vector<std::byte> nowhere(link_->address().begin(), link_->address().end());
  link_.reset();
  ASSERT_TRUE(channel->send(chunk_of({1, 1}, pattern(1000, 1))).is_ok());
  const auto deadline = patience();
  hello.stream = 1;
  for (hello.generation = 1; channel->status().is_ok() && !deadline.expired(); ++hello.generation) {
    (void)control.send(make_header(PacketType::Heartbeat));
    RawConnection data(victim->port());
    ASSERT_TRUE(data.send(hello));
    const auto welcome = data.read_header();
    if (!welcome || welcome->type != static_cast<std::uint8_t>(PacketType::Welcome)) break;
    WireHeader header = make_header(PacketType::RdmaAddress);
    header.length = static_cast<std::uint32_t>(nowhere.size());
    ASSERT_TRUE(data.send(header));
    ASSERT_TRUE(data.send(nowhere.data(), nowhere.size()));
    EXPECT_TRUE(data.closed_by_peer());
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_EQ(channel->status().code(), StatusCode::PeerLost) << channel->status().to_string();
  EXPECT_NE(channel->status().message().find("moved nothing"), std::string::npos)
      << channel->status().message();
}

// spec channel 10.1: "A channel with data_path 1 MUST have one data stream."
TEST_F(HostileRdmaPeer, test_second_data_stream_is_refused) {
  HelloPayload hello = raw_hello(*victim_, 0, 2, token(1), id_of(0xFE));
  hello.data_path = DataPath::Rdma;
  RawConnection connection(victim_->port());
  ASSERT_TRUE(connection.send(hello));
  const auto answer = connection.read_header();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->type, static_cast<std::uint8_t>(PacketType::Refuse));
  EXPECT_EQ(answer->code, static_cast<std::uint16_t>(StatusCode::InvalidArgument));
}

// The data stream's TLS connection is idle, and answers all the same: a peer that asks for new keys, again
// and again, and reads nothing until the socket is full, has its answers once there is room.
TEST_F(RdmaChannel, test_tls_under_the_fabric_answers_a_peer_that_asks_for_keys) {
  Authority authority;
  Folder folder_a;
  Folder folder_b;
  authority.write_keys(folder_a, "geocomm://job/a");
  authority.write_keys(folder_b, "geocomm://job/b");
  EndpointOptions secure = options();
  secure.keys = folder_a.path();
  const auto victim = make_endpoint(secure);
  PeerAddress address{id_of(0xFF), "127.0.0.1", 1, "rank 1", "", true};
  const auto channel = *victim->connect(address, token(1));
  const auto welcomed = [&](TlsStranger& stranger, const HelloPayload& hello) {
    stranger.say(hello);
    const auto answer = stranger.answer();
    ASSERT_TRUE(answer && answer->type == PacketType::Welcome);
  };
  HelloPayload hello = raw_hello(*victim, 0, 1, token(1), id_of(0xFF));
  hello.data_path = DataPath::Rdma;
  TlsStranger control(victim->port(), &folder_b);
  welcomed(control, hello);
  hello.stream = 1;
  hello.binding = control.proof_of(1, 1);
  TlsStranger data(victim->port(), &folder_b);
  welcomed(data, hello);
  const auto head = data.read(kHeaderBytes);
  ASSERT_TRUE(head.has_value());
  HeaderBytes bytes;
  std::memcpy(bytes.data(), head->data(), bytes.size());
  const auto header = parse_header(bytes);
  ASSERT_TRUE(header.is_ok() && header->type == static_cast<std::uint8_t>(PacketType::RdmaAddress));
  ASSERT_TRUE(data.read(header->length).has_value());

  // The victim's end, in this process: with little room, a few thousand answers fill it.
  const std::uint16_t here = SocketAddress::local_of(data.fd()).port();
  const int least = 1;
  for (int fd = 0; fd < 1024; ++fd) {
    const SocketAddress peer = SocketAddress::peer_of(fd);
    const bool is_ip = peer.family() == AF_INET || peer.family() == AF_INET6;
    if (!is_ip || peer.port() != here) continue;
    ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
  }
  int answers = 0;
  SSL_set_msg_callback_arg(&data.ssl(), &answers);
  SSL_set_msg_callback(&data.ssl(),
                       [](int sent, int, int type, const void* message, std::size_t size, SSL*, void* count) {
                         if (sent != 0 || type != SSL3_RT_HANDSHAKE || size == 0) return;
                         if (*static_cast<const char*>(message) == SSL3_MT_KEY_UPDATE)
                           ++*static_cast<int*>(count);
                       });
  int asked = 0;
  const auto ask = [&](int times) {
    for (int i = 0; i < times; ++i, ++asked) {
      ASSERT_EQ(SSL_key_update(&data.ssl(), SSL_KEY_UPDATE_REQUESTED), 1);
      ASSERT_EQ(SSL_do_handshake(&data.ssl()), 1);
    }
  };
  // So that its silence is no loss, however slow the machine.
  const auto say_alive = [&] {
    WireHeader alive = make_header(PacketType::Heartbeat);
    alive.op = 1;
    const HeaderBytes content = encode_header(alive);
    ASSERT_TRUE(control.write(std::string(reinterpret_cast<const char*>(content.data()), content.size())));
  };
  const auto arrived = [&] {
    int there = 0;
    for (int same = 0, before = 0; same < 5; same = there == before ? same + 1 : 0, before = there) {
      std::this_thread::sleep_for(20ms);
      EXPECT_EQ(::ioctl(data.fd(), FIONREAD, &there), 0);
    }
    return there;
  };
  for (int before = -1, there = 0; there != before;) {
    before = there;
    ask(200);
    say_alive();
    there = arrived();
  }
  ask(600);  // which stay behind the full socket
  const timeval little{0, 100'000};
  ASSERT_EQ(::setsockopt(data.fd(), SOL_SOCKET, SO_RCVTIMEO, &little, sizeof little), 0);
  // OpenSSL keeps the last one back until there is data to send, as RFC 8446, 4.6.3, allows.
  for (const Deadline end = patience(); answers < asked - 1 && !end.expired();) {
    char byte = 0;
    say_alive();
    ASSERT_LE(SSL_read(&data.ssl(), &byte, 1), 0) << "data where only answers may come";
    ASSERT_TRUE(channel->status().is_ok()) << channel->status().to_string();
  }
  EXPECT_GE(answers, asked - 1);
}

}  // namespace
}  // namespace geocomm::transport::testing
