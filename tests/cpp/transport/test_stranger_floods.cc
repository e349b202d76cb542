// Floods of strangers at a TLS listener: a peer that comes back is let in all the same. Addresses of loopback
// stand for those of other machines.
#include <sys/resource.h>

#include <atomic>
#include <optional>
#include <thread>

#include "fault_proxy.h"
#include "raw_peer.h"
#include "tls_fixture.h"
#include "tls_stranger.h"
#include "transport/link/acceptor.h"

namespace geocomm::transport::testing {
namespace {

// A crowd takes a descriptor at both ends of each connection: more than the 1,024 that a shell gives to many.
class ManyDescriptors : public ::testing::Environment {
 public:
  void SetUp() override {
    rlimit descriptors{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &descriptors), 0);
    descriptors.rlim_cur = std::min<rlim_t>(descriptors.rlim_max, 16384);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &descriptors), 0);
  }
};
const auto* const kManyDescriptors = ::testing::AddGlobalTestEnvironment(new ManyDescriptors);

Fd connect_from(const std::string& source, std::uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto from = *SocketAddress::parse(source, 0);
  const auto to = *SocketAddress::parse("127.0.0.1", port);
  EXPECT_EQ(::bind(fd.get(), from.get(), from.size()), 0);
  EXPECT_EQ(::connect(fd.get(), to.get(), to.size()), 0) << std::strerror(errno);
  return fd;
}

std::string source_number(int i) {
  return "127.0.1." + std::to_string(1 + i % 250);
}

// How a stranger's connection ends up: with nothing said, with part of a ClientHello, with all of it.
enum class Stage : std::uint8_t { Silent, Partial, Hello };

struct Flood {
  Stage stage;
  bool many_sources;
  bool peers_source;  // the honest peer's own address
};

class StrangerFlood : public ::testing::TestWithParam<Flood> {
 protected:
  void SetUp() override {
    EndpointOptions options;
    options.streams = 4;
    authority_.write_keys(keys_a_, "geocomm://job/a");
    authority_.write_keys(keys_b_, "geocomm://job/b");
    EndpointOptions first = options;
    EndpointOptions second = options;
    first.keys = keys_a_.path();
    second.keys = keys_b_.path();
    low_ = make_endpoint(first);
    do high_ = make_endpoint(second);
    while (low_->id() > high_->id());
    proxy_ = std::make_unique<FaultProxy>(low_->port());
    proxy_->come_from("127.0.0.7");
    PeerAddress to_low = address_of(*low_, "rank 0 (low)");
    to_low.port = proxy_->port();
    to_low.site = "a";
    PeerAddress to_high = address_of(*high_, "rank 1 (high)");
    to_high.site = "b";
    low_channel_ = *low_->connect(to_high, token(1));
    high_channel_ = *high_->connect(to_low, token(1));
    ASSERT_TRUE(high_channel_->wait_ready(patience()).is_ok()) << high_channel_->status().to_string();
    ASSERT_TRUE(low_channel_->wait_ready(patience()).is_ok());
    hello_ = first_flight(keys_b_);
  }
  void TearDown() override {
    high_.reset();
    low_.reset();
  }
  Fd stranger(int number) const {
    const Flood& flood = GetParam();
    Fd fd = connect_from(flood.peers_source   ? "127.0.0.7"
                         : flood.many_sources ? source_number(number)
                                              : "127.0.0.9",
                         low_->port());
    const std::size_t bytes = flood.stage == Stage::Silent    ? 0
                              : flood.stage == Stage::Partial ? 20
                                                              : hello_.size();
    (void)::send(fd.get(), hello_.data(), bytes, MSG_NOSIGNAL);
    return fd;
  }

  Authority authority_;
  Folder keys_a_;
  Folder keys_b_;
  std::string hello_;
  std::unique_ptr<Endpoint> low_;
  std::unique_ptr<Endpoint> high_;
  std::unique_ptr<FaultProxy> proxy_;
  std::shared_ptr<Channel> low_channel_;
  std::shared_ptr<Channel> high_channel_;
};

std::string name_of_flood(const Flood& flood) {
  static constexpr std::array kStages = {"Silent", "Partial", "Hello"};
  return std::string(kStages[static_cast<std::size_t>(flood.stage)]) +
         (flood.peers_source   ? "_from_the_peers_address"
          : flood.many_sources ? "_from_many_addresses"
                               : "_from_one_address");
}

INSTANTIATE_TEST_SUITE_P(
    , StrangerFlood,
    ::testing::Values(Flood{Stage::Silent, false, false}, Flood{Stage::Silent, true, false},
                      Flood{Stage::Partial, true, false}, Flood{Stage::Hello, false, false},
                      Flood{Stage::Hello, true, false}, Flood{Stage::Silent, false, true},
                      Flood{Stage::Hello, false, true}),
    [](const auto& info) { return name_of_flood(info.param); });

// While it goes on: as many as the process takes, with new ones all the time in place of the oldest.
TEST_P(StrangerFlood, test_link_that_is_reset_resumes_during_it) {
  constexpr std::size_t kOpen = 2000;
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> made{0};
  std::thread strangers([&] {
    std::vector<Fd> open(kOpen);
    for (int i = 0; !stop; ++i) {
      open[static_cast<std::size_t>(i) % kOpen] = stranger(i);
      ++made;
      if (made > kOpen && i % 4 == 0) std::this_thread::sleep_for(1ms);
    }
  });
  while (made < kOpen) std::this_thread::sleep_for(1ms);
  proxy_->reset_all();
  expect_transfer(*high_channel_, *low_channel_, 1, 500'000);
  expect_transfer(*low_channel_, *high_channel_, 2, 500'000);
  EXPECT_GT(high_channel_->stats().resumes, 0U);
  stop = true;
  strangers.join();
  EXPECT_TRUE(high_channel_->status().is_ok()) << high_channel_->status().to_string();
}

// An endpoint that has room for so many strangers. Those of 1,024 would take a busy machine longer than a
// stranger may be silent.
constexpr std::size_t kRoom = 100;
std::unique_ptr<Endpoint> endpoint_with_little_room() {
  const FewDescriptors few(3 * kRoom);  // strangers leave the process more than half of them
  return make_endpoint();
}

// What a source has too much of is its own loss: a connection from elsewhere stays.
TEST(StrangerShares, test_source_with_the_most_loses_its_oldest) {
  const auto victim = endpoint_with_little_room();
  victim->allow(token(1));
  RawConnection patient(connect_from("127.0.0.3", victim->port()));
  std::vector<RawConnection> crowd;
  for (std::size_t i = 0; i < kRoom + 30; ++i) {
    crowd.emplace_back(connect_from("127.0.0.9", victim->port()));
  }
  EXPECT_TRUE(crowd.front().closed_by_peer());
  ASSERT_TRUE(patient.send(raw_hello(*victim, 0, 1, token(1))));
  const auto welcome = patient.read_header();
  ASSERT_TRUE(welcome.has_value());
  EXPECT_EQ(welcome->type, static_cast<std::uint8_t>(PacketType::Welcome));
}

// Strangers of very many addresses take each other's places, not those of a peer's address.
TEST(StrangerShares, test_address_of_a_peer_keeps_its_place) {
  const auto victim = endpoint_with_little_room();
  // Where a peer is said to be; it need not be there.
  const auto channel = *victim->connect({id_of(0xFF), "127.0.0.3", 1, "peer"}, token(1));
  RawConnection early(victim->port());  // once it is answered, the peer's address is known
  ASSERT_TRUE(early.send(raw_hello(*victim, 0, 1, token(77))) && early.closed_by_peer());
  std::vector<RawConnection> peers;
  for (int i = 0; i < 20; ++i) peers.emplace_back(connect_from("127.0.0.3", victim->port()));
  std::vector<RawConnection> crowd;
  for (std::size_t i = 0; i < 2 * kRoom; ++i) {
    const auto number = static_cast<int>(i);
    crowd.emplace_back(
        connect_from("127.0." + std::to_string(1 + number / 250) + "." + std::to_string(1 + number % 250),
                     victim->port()));
  }
  EXPECT_TRUE(crowd.front().closed_by_peer());
  for (int i = 0; i < 20; ++i) {
    auto& peer = peers[static_cast<std::size_t>(i)];
    ASSERT_TRUE(peer.send(raw_hello(*victim, 0, 1, token(77)))) << i;
    const auto refuse = peer.read_header();
    ASSERT_TRUE(refuse.has_value()) << i;
    EXPECT_EQ(refuse->type, static_cast<std::uint8_t>(PacketType::Refuse));
  }
}

}  // namespace
}  // namespace geocomm::transport::testing
