// Peers with several addresses, of which one may be dead, another process's or deaf; and links that only one
// of the two ends can make. Addresses of one machine stand for those of others: 127.0.0.1, .2, .3.
#include <array>
#include <thread>

#include "fault_proxy.h"
#include "tls_fixture.h"

namespace geocomm::transport::testing {
namespace {

EndpointOptions at_one_address() {
  EndpointOptions options;
  options.bind_address = "127.0.0.1";  // alone: what is dialed at .2 and .3 is not it
  return options;
}

TEST(Hosts, test_list_is_read_as_names_and_addresses) {
  EXPECT_EQ(hosts_of("a.example,10.0.0.1,fd00::1"),
            (std::vector<std::string>{"a.example", "10.0.0.1", "fd00::1"}));
  EXPECT_TRUE(hosts_of("").empty());
  EXPECT_EQ(hosts_of(",a,,"), std::vector<std::string>{"a"});
  EXPECT_EQ(numeric_addresses("a.example,10.0.0.1,fd00::1", 7).size(), 2U);
}

TEST(Hosts, test_families_are_dialed_by_turns) {
  const auto found = resolve("fd00::1,fd00::2,10.0.0.1,10.0.0.2,10.0.0.3", 7);
  ASSERT_TRUE(found.is_ok());
  std::vector<std::string> hosts;
  for (const SocketAddress& address : *found) hosts.push_back(address.host());
  EXPECT_EQ(hosts, (std::vector<std::string>{"fd00::1", "10.0.0.1", "fd00::2", "10.0.0.2", "10.0.0.3"}));
}

TEST(SeveralAddresses, test_refused_one_is_passed_over_and_the_good_one_is_remembered) {
  Pair pair(at_one_address());
  PeerAddress to_low = address_of(*pair.low, "rank 0 (low)");
  to_low.host = "127.0.0.3,127.0.0.1";
  pair.low_channel = *pair.low->connect(address_of(*pair.high, "rank 1 (high)"), token(1));
  pair.high_channel = *pair.high->connect(to_low, token(1));
  expect_transfer(*pair.high_channel, *pair.low_channel, 1, 300'000);
}

TEST(SeveralAddresses, test_deaf_one_is_passed_over) {
  Pair pair(at_one_address());
  FaultProxy deaf(pair.low->port(), 1, "127.0.0.2", pair.low->port());
  deaf.swallow_new(true);
  PeerAddress to_low = address_of(*pair.low, "rank 0 (low)");
  to_low.host = "127.0.0.2,127.0.0.1";
  PeerAddress nowhere = address_of(*pair.high, "rank 1 (high)");
  nowhere.host.clear();
  pair.low_channel = *pair.low->connect(nowhere, token(1));
  pair.high_channel = *pair.high->connect(to_low, token(1));
  expect_transfer(*pair.high_channel, *pair.low_channel, 1, 300'000);
  EXPECT_GE(deaf.accepted(), 1);
}

// The address that somebody else has here, as private ones of two networks may be.
TEST(SeveralAddresses, test_another_process_at_one_of_them_is_not_the_peers_word) {
  EndpointOptions elsewhere = at_one_address();
  elsewhere.bind_address = "127.0.0.2";
  Pair pair(at_one_address());
  elsewhere.port = pair.low->port();
  const auto other = make_endpoint(elsewhere);
  other->allow(token(1));
  PeerAddress to_low = address_of(*pair.low, "rank 0 (low)");
  to_low.host = "127.0.0.2,127.0.0.1";
  pair.low_channel = *pair.low->connect(address_of(*pair.high, "rank 1 (high)"), token(1));
  pair.high_channel = *pair.high->connect(to_low, token(1));
  expect_transfer(*pair.high_channel, *pair.low_channel, 1, 300'000);
}

TEST(SeveralAddresses, test_list_without_a_host_is_an_address_where_nobody_is) {
  EndpointOptions options = at_one_address();
  options.link_deadline = std::chrono::seconds(1);
  Pair pair(options);
  PeerAddress to_low = address_of(*pair.low, "rank 0 (low)");
  to_low.host = ",,";
  const auto channel = *pair.high->connect(to_low, token(1));
  EXPECT_EQ(channel->wait_ready(patience()).code(), StatusCode::Network);
}

TEST(SeveralAddresses, test_failure_names_each_of_them) {
  EndpointOptions options = at_one_address();
  options.link_deadline = std::chrono::seconds(1);
  Pair pair(options);
  PeerAddress to_low = address_of(*pair.low, "rank 0 (low)");
  to_low.host = "127.0.0.2,127.0.0.3";
  const auto channel = *pair.high->connect(to_low, token(1));
  const Status status = channel->wait_ready(patience());
  EXPECT_EQ(status.code(), StatusCode::PeerLost);
  for (const char* address : {"127.0.0.2:", "127.0.0.3:"}) {
    EXPECT_NE(status.message().find(address), std::string::npos) << status.message();
  }
}

// With and without TLS: the larger id, whose turn it is, is behind a network that lets it reach nobody.
class OneWay : public ::testing::TestWithParam<bool> {
 protected:
  void make() {
    EndpointOptions first = at_one_address();
    first.streams = 3;
    EndpointOptions second = first;
    if (GetParam()) {
      authority_.write_keys(keys_a_, "geocomm://job/a");
      authority_.write_keys(keys_b_, "geocomm://job/b");
      first.keys = keys_a_.path();
      second.keys = keys_b_.path();
    }
    low_ = make_endpoint(first);
    do high_ = make_endpoint(second);
    while (low_->id() > high_->id());
    to_low_ = address_of(*low_, "rank 0 (low)");
    to_high_ = address_of(*high_, "rank 1 (high)");
    if (GetParam()) {
      to_low_.site = "a";
      to_high_.site = "b";
    }
  }
  void connect() {
    low_channel_ = *low_->connect(to_high_, token(1));
    high_channel_ = *high_->connect(to_low_, token(1));
    ASSERT_TRUE(high_channel_->wait_ready(patience()).is_ok()) << high_channel_->status().to_string();
    ASSERT_TRUE(low_channel_->wait_ready(patience()).is_ok()) << low_channel_->status().to_string();
  }

  Authority authority_;
  Folder keys_a_;
  Folder keys_b_;
  std::unique_ptr<Endpoint> low_;
  std::unique_ptr<Endpoint> high_;
  PeerAddress to_low_;
  PeerAddress to_high_;
  std::shared_ptr<Channel> low_channel_;
  std::shared_ptr<Channel> high_channel_;
};

TEST_P(OneWay, test_smaller_id_dials_where_the_larger_one_is_refused) {
  make();
  to_low_.host = "127.0.0.2";
  connect();
  expect_transfer(*low_channel_, *high_channel_, 1, 3'000'000);
  expect_transfer(*high_channel_, *low_channel_, 2, 3'000'000);
}

TEST_P(OneWay, test_smaller_id_dials_where_the_larger_one_hears_nothing) {
  make();
  FaultProxy deaf(low_->port(), 1, "127.0.0.2", low_->port());
  deaf.swallow_new(true);
  to_low_.host = "127.0.0.2";
  connect();
  expect_transfer(*low_channel_, *high_channel_, 1, 3'000'000);
}

// Connections that break are made again by the side that made them, and the other one still asks.
TEST_P(OneWay, test_link_that_the_smaller_id_made_comes_back) {
  make();
  FaultProxy way(high_->port(), 1, "127.0.0.3");
  to_low_.host = "127.0.0.2";
  to_high_.host = "127.0.0.3";
  to_high_.port = way.port();
  connect();
  for (std::uint64_t round = 1; round < 6; ++round) {
    expect_transfer(*low_channel_, *high_channel_, 2 * round, 3'000'000, 3);
    way.reset_all();
    expect_transfer(*high_channel_, *low_channel_, 2 * round + 1, 3'000'000, 3);
  }
  EXPECT_GT(low_channel_->stats().resumes, 0U);
  EXPECT_TRUE(low_->shutdown(patience()).is_ok());
  EXPECT_TRUE(high_->shutdown(patience()).is_ok());
}

INSTANTIATE_TEST_SUITE_P(Links, OneWay, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tls" : "Plain"; });

// Both ends dial at about the same time, in every order: exactly one link comes of it.
TEST(BothDial, test_every_pair_connects_whoever_comes_first) {
  struct Try {
    std::unique_ptr<Pair> pair;
    std::unique_ptr<FaultProxy> to_low, to_high;
  };
  std::vector<Try> tries;
  for (int i = 0; i < 24; ++i) {
    Try one;
    one.pair = std::make_unique<Pair>(at_one_address());
    one.to_low = std::make_unique<FaultProxy>(one.pair->low->port());
    one.to_high = std::make_unique<FaultProxy>(one.pair->high->port());
    for (FaultProxy* const way : {one.to_low.get(), one.to_high.get()}) {
      way->delay(std::chrono::milliseconds(20 * (i % 4)));
    }
    one.to_low->listen(false);  // until the smaller id's turn comes
    PeerAddress low = address_of(*one.pair->low, "rank 0 (low)");
    PeerAddress high = address_of(*one.pair->high, "rank 1 (high)");
    low.port = one.to_low->port();
    high.port = one.to_high->port();
    one.pair->low_channel = *one.pair->low->connect(high, token(1));
    one.pair->high_channel = *one.pair->high->connect(low, token(1));
    tries.push_back(std::move(one));
  }
  std::this_thread::sleep_for(1900ms);
  for (const Try& one : tries) {
    one.to_low->listen(true);
    std::this_thread::sleep_for(10ms);
  }
  for (const Try& one : tries) {
    expect_transfer(*one.pair->low_channel, *one.pair->high_channel, 1, 300'000);
    expect_transfer(*one.pair->high_channel, *one.pair->low_channel, 2, 300'000);
  }
  for (Try& one : tries) one.pair.reset();  // before its proxies
}

}  // namespace
}  // namespace geocomm::transport::testing
