// Strangers at a TLS listener: they learn nothing, take bounded memory and time, and a transfer goes on.
#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <random>
#include <thread>

#include "../sanitizers.h"
#include "raw_peer.h"
#include "steady_traffic.h"
#include "tls_fixture.h"
#include "tls_stranger.h"

#ifdef GEOCOMM_UNDER_ASAN
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();  // g++ ships no header that declares it
#endif

namespace geocomm::transport::testing {
namespace {

std::size_t memory_in_use() {
#ifdef GEOCOMM_UNDER_ASAN
  return __sanitizer_get_current_allocated_bytes();  // ASan keeps up to 256 MiB of freed memory resident
#else
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
#endif
}

// A victim with an honest peer, between which data flows all the time.
class TlsHostile : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status connected = pair_.connect();
    ASSERT_TRUE(connected.is_ok()) << connected.to_string();
    traffic_.emplace(*pair_.high_channel, *pair_.low_channel);
  }
  void TearDown() override {
    if (!traffic_) return;
    EXPECT_TRUE(traffic_->goes_on());
    traffic_.reset();
    EXPECT_TRUE(pair_.low_channel->status().is_ok()) << pair_.low_channel->status().to_string();
    EXPECT_EQ(pair_.low_channel->stats().resumes, 0U);
  }
  Endpoint& victim() { return *pair_.low; }
  // The first flight of an honest handshake.
  std::string client_hello() { return first_flight(pair_.keys_b); }

  SecurePair pair_;
  std::optional<SteadyTraffic> traffic_;
};

// spec channel 3.1: "The acceptor MUST close a connection without an answer in three cases"
TEST_F(TlsHostile, test_random_bytes_and_other_protocols_are_dropped_at_once) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 30; ++i) {
    RawConnection raw(victim().port());
    std::vector<std::uint64_t> noise(1 + random() % 64);
    for (auto& word : noise) word = random();
    if (i % 2 == 1) noise[0] = 0x0000'0040'0103'1600 >> 8 | noise[0] << 40;  // a record of type handshake
    (void)raw.send(noise.data(), noise.size() * 8);
    ::shutdown(raw.fd(), SHUT_WR);
    EXPECT_TRUE(raw.closed_by_peer());
  }
  RawConnection raw(victim().port());
  ASSERT_TRUE(raw.send("GET / HTTP/1.1\r\n\r\n", 18));
  EXPECT_TRUE(raw.closed_by_peer());
}

TEST_F(TlsHostile, test_plaintext_hello_with_the_token_is_refused) {
  RawConnection raw(victim().port());
  ASSERT_TRUE(raw.send(raw_hello(victim(), 0, 1, token(1))));
  const auto refuse = raw.read_header();
  ASSERT_TRUE(refuse.has_value());
  EXPECT_EQ(refuse->type, static_cast<std::uint8_t>(PacketType::Refuse));
  EXPECT_EQ(refuse->code, static_cast<std::uint16_t>(StatusCode::Authentication));
}

TEST_F(TlsHostile, test_slow_handshake_is_cut_off) {
  const std::string hello = client_hello();
  RawConnection raw(victim().port());
  bool alive = true;
  for (std::size_t i = 0; i < 60 && alive; ++i) {
    alive = raw.send(hello.data() + i, 1);
    std::this_thread::sleep_for(250ms);
  }
  EXPECT_FALSE(alive) << "the victim still waits for the rest of the hello";
}

TEST_F(TlsHostile, test_ten_thousand_half_open_handshakes_take_bounded_memory) {
  const std::string hello = client_hello();
  std::vector<RawConnection> open;
  const std::size_t before = memory_in_use();
  std::size_t most = before;
  const std::uint64_t rounds_before = traffic_->rounds();
  for (int i = 0; i < 10'000; ++i) {
    // Of which this process keeps no more than its descriptors allow.
    if (open.size() >= 400) open.erase(open.begin(), open.begin() + 200);
    open.emplace_back(victim().port());
    (void)open.back().send(hello.data(), i % 10 == 0 ? hello.size() : 1);
    if (i % 500 == 0) most = std::max(most, memory_in_use());
  }
  EXPECT_LT(std::max(most, memory_in_use()) - before, std::size_t{200} << 20);
  EXPECT_GT(traffic_->rounds(), rounds_before);
}

// Everything right but the certificate, again and again.
TEST_F(TlsHostile, test_flood_of_certificates_of_another_ca_is_refused) {
  Authority other;
  Folder folder;
  other.write_keys(folder, "geocomm://job/b");
  auto keys = std::move(TlsKeys::load(folder.path())).value();
  for (int i = 0; i < 50; ++i) {
    RawConnection raw(victim().port());
    const int flags = ::fcntl(raw.fd(), F_GETFL);
    ASSERT_EQ(::fcntl(raw.fd(), F_SETFL, flags | O_NONBLOCK), 0);
    auto dialer = std::move(keys->secure(Fd(::dup(raw.fd())), TlsRole::Dialer)).value();
    core::Result<bool> done = dialer->handshake();
    for (const Deadline end = Deadline::after(20s); done.is_ok() && !*done && !end.expired();) {
      pollfd waiting{raw.fd(), static_cast<short>(dialer->wanted_events()), 0};
      (void)::poll(&waiting, 1, 1000);
      done = dialer->handshake();
    }
    EXPECT_EQ(done.status().code(), StatusCode::Authentication) << "the victim's CA is as unknown here";
  }
}

}  // namespace
}  // namespace geocomm::transport::testing
