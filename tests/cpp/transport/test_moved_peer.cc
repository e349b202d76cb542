// A peer whose address changes while the link is in use is found again at the new one. Addresses of one
// machine stand for those of others: 127.0.0.1, .2, .3.
#include <thread>

#include "fault_proxy.h"
#include "tls_fixture.h"

namespace geocomm::transport::testing {
namespace {

// With and without TLS: `low` waits, `high` dials.
class MovedPeer : public ::testing::TestWithParam<bool> {
 protected:
  void make(const std::string& host_of_high) {
    EndpointOptions options;
    options.streams = 4;
    EndpointOptions first = options;
    EndpointOptions second = options;
    first.bind_address = "127.0.0.1";
    second.bind_address = host_of_high;
    if (GetParam()) {
      authority_.write_keys(keys_a_, "geocomm://job/a");
      authority_.write_keys(keys_b_, "geocomm://job/b");
      first.keys = keys_a_.path();
      second.keys = keys_b_.path();
    }
    low_ = make_endpoint(first);
    do high_ = make_endpoint(second);
    while (low_->id() > high_->id());
  }
  void connect(const std::string& host_of_low, std::uint16_t port_of_low, const std::string& host_of_high) {
    PeerAddress to_low = address_of(*low_, "rank 0 (low)");
    PeerAddress to_high = address_of(*high_, "rank 1 (high)");
    to_low.host = host_of_low;
    to_low.port = port_of_low;
    to_high.host = host_of_high;
    if (GetParam()) {
      to_low.site = "a";
      to_high.site = "b";
    }
    low_channel_ = *low_->connect(to_high, token(1));
    high_channel_ = *high_->connect(to_low, token(1));
    ASSERT_TRUE(high_channel_->wait_ready(patience()).is_ok()) << high_channel_->status().to_string();
    ASSERT_TRUE(low_channel_->wait_ready(patience()).is_ok()) << low_channel_->status().to_string();
  }

  Authority authority_;
  Folder keys_a_;
  Folder keys_b_;
  std::unique_ptr<Endpoint> low_;
  std::unique_ptr<Endpoint> high_;
  std::shared_ptr<Channel> low_channel_;
  std::shared_ptr<Channel> high_channel_;
};

// Its old address swallows whatever is sent there. It asks whether the dialer still lives, which tells where
// it is.
TEST_P(MovedPeer, test_side_that_waits_is_dialed_where_it_asks_from) {
  make("127.0.0.1");
  FaultProxy old_address(low_->port(), 1, "127.0.0.2", low_->port());
  connect("127.0.0.2", low_->port(), "127.0.0.1");
  expect_transfer(*high_channel_, *low_channel_, 1, 3'000'000);
  EXPECT_EQ(old_address.open(), 5U);
  std::thread mover([&] {
    std::this_thread::sleep_for(5ms);
    old_address.swallow_new(true);
    old_address.reset_all();
  });
  for (std::uint64_t op = 2; op < 8; ++op) {
    expect_transfer(*high_channel_, *low_channel_, 2 * op, 3'000'000);
    expect_transfer(*low_channel_, *high_channel_, 2 * op + 1, 3'000'000);
  }
  mover.join();
  EXPECT_GE(high_channel_->stats().resumes, 5U);
  EXPECT_TRUE(high_->shutdown(patience()).is_ok());
}

// As above, and somebody else has the old address already, who refuses connections: that is not the peer's
// end.
TEST_P(MovedPeer, test_refusals_from_the_old_address_do_not_count_against_the_new_one) {
  make("127.0.0.1");
  FaultProxy old_address(low_->port(), 1, "127.0.0.2", low_->port());
  connect("127.0.0.2", low_->port(), "127.0.0.1");
  old_address.listen(false);
  old_address.reset_all();
  for (std::uint64_t op = 1; op < 4; ++op) expect_transfer(*high_channel_, *low_channel_, op, 3'000'000);
  EXPECT_TRUE(high_channel_->status().is_ok()) << high_channel_->status().to_string();
}

// What the waiting side knew of the dialer is refused now. It asks where the dialer came from last.
TEST_P(MovedPeer, test_side_that_dials_is_asked_where_it_came_from) {
  make("127.0.0.3");
  FaultProxy way(low_->port());
  connect("127.0.0.1", way.port(), "127.0.0.2");
  way.come_from("127.0.0.3");
  way.reset_all();
  expect_transfer(*high_channel_, *low_channel_, 1, 3'000'000);
  way.listen(false);
  way.reset_all();
  // Longer than refusals are taken for anything but a peer that has ended.
  std::this_thread::sleep_for(7s);
  EXPECT_TRUE(low_channel_->status().is_ok()) << low_channel_->status().to_string();
  way.listen(true);
  expect_transfer(*low_channel_, *high_channel_, 2, 3'000'000);
}

INSTANTIATE_TEST_SUITE_P(Links, MovedPeer, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tls" : "Plain"; });

}  // namespace
}  // namespace geocomm::transport::testing
