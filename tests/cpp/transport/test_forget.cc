// Channels that live until somebody above says so (PeerAddress::verdict_from_above), and what ends them
// (Endpoint::forget()).
#include <gtest/gtest.h>

#include <thread>

#include "fault_proxy.h"
#include "tls_fixture.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

constexpr auto kShortDeadline = 300ms;
const Status kForgotten(StatusCode::Aborted, "forgotten");

// `high` dials `low` through a proxy; with TLS, so that refusals are proven.
class ForgetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    authority_.write_keys(keys_, "geocomm://job/a");
    EndpointOptions options;
    options.keys = keys_.path();
    options.link_deadline = kShortDeadline;
    options.streams = 2;
    pair_ = std::make_unique<Pair>(options);
    third_ = make_endpoint(options);
    proxy_ = std::make_unique<FaultProxy>(pair_->low->port());
  }
  void TearDown() override { pair_.reset(); }

  void connect_low() {
    PeerAddress to_high = address_of(*pair_->high, "high");
    to_high.verdict_from_above = true;
    pair_->low_channel = *pair_->low->connect(to_high, token(1));
  }
  void connect_high(std::uint16_t port = 0) {
    PeerAddress to_low = address_of(*pair_->low, "low");
    to_low.port = port == 0 ? proxy_->port() : port;
    to_low.verdict_from_above = true;
    pair_->high_channel = *pair_->high->connect(to_low, token(1));
  }
  void connect() {
    connect_low();
    connect_high();
    expect_ready();
  }
  void expect_ready() {
    ASSERT_TRUE(low().wait_ready(patience()).is_ok()) << low().status().to_string();
    ASSERT_TRUE(high().wait_ready(patience()).is_ok()) << high().status().to_string();
  }
  // Longer than any verdict of the transport takes.
  void expect_no_verdict() {
    std::this_thread::sleep_for(5 * kShortDeadline);
    EXPECT_TRUE(low().status().is_ok()) << low().status().to_string();
    EXPECT_TRUE(high().status().is_ok()) << high().status().to_string();
  }
  void expect_transfers() {
    expect_transfer(high(), low(), ++op_, 3 * kMiB);
    expect_transfer(low(), high(), ++op_, 3 * kMiB);
  }
  Channel& low() { return *pair_->low_channel; }
  Channel& high() { return *pair_->high_channel; }

  Authority authority_;
  Folder keys_;
  std::unique_ptr<Pair> pair_;
  std::unique_ptr<Endpoint> third_;
  std::unique_ptr<FaultProxy> proxy_;
  std::uint64_t op_ = 0;
};

TEST_F(ForgetTest, silence_is_no_verdict) {
  connect();
  expect_transfers();
  proxy_->swallow_new(true);
  proxy_->swallow(FaultProxy::Direction::ToServer);
  proxy_->swallow(FaultProxy::Direction::ToClient);
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(low().post_receive({2, 1}, 7, 1, sink).is_ok());
  ASSERT_TRUE(high().send(chunk_of({2, 1}, pattern(kMiB, 1))).is_ok());
  expect_no_verdict();
  proxy_->swallow_new(false);
  proxy_->reset_all();
  EXPECT_TRUE(sink->wait().is_ok());
  EXPECT_EQ(sink->data(), pattern(kMiB, 1));
  expect_transfers();
}

TEST_F(ForgetTest, refusals_are_no_verdict_before_the_first_connection_nor_after) {
  proxy_->listen(false);
  connect_low();
  connect_high();
  expect_no_verdict();
  proxy_->listen(true);
  expect_ready();
  expect_transfers();
  proxy_->listen(false);
  proxy_->reset_all();
  expect_no_verdict();
  proxy_->listen(true);
  expect_transfers();
}

TEST_F(ForgetTest, another_process_at_the_address_is_no_verdict) {
  third_->allow(token(1));
  proxy_->lead_to(third_->port());
  connect_low();
  connect_high();
  expect_no_verdict();
  proxy_->lead_to(pair_->low->port());
  expect_ready();
  proxy_->lead_to(third_->port());
  proxy_->reset_all();
  expect_no_verdict();
  connect_high(pair_->low->port());  // a newer address
  expect_transfers();
}

TEST_F(ForgetTest, certificate_of_another_site_is_a_verdict) {
  connect_low();
  PeerAddress to_low = address_of(*pair_->low, "low");
  to_low.site = "b";
  to_low.verdict_from_above = true;
  pair_->high_channel = *pair_->high->connect(to_low, token(1));
  EXPECT_EQ(high().wait_ready(patience()).code(), StatusCode::Authentication);
}

TEST_F(ForgetTest, peer_that_leaves_in_good_order_ends_its_channel_only) {
  connect();
  PeerAddress to_third = address_of(*third_, "third");
  PeerAddress from_third = address_of(*pair_->low, "low");
  to_third.verdict_from_above = from_third.verdict_from_above = true;
  const auto beside = *pair_->low->connect(to_third, token(1));
  const auto beside_too = *third_->connect(from_third, token(1));
  ASSERT_TRUE(pair_->high->shutdown(patience()).is_ok());
  auto sink = std::make_shared<CollectingSink>(1);
  (void)low().post_receive({2, 1}, 7, 1, sink);
  EXPECT_EQ(sink->wait().code(), StatusCode::PeerLost);
  expect_transfer(*beside, *beside_too, 1, kMiB);
  EXPECT_EQ(beside->stats().resumes, 0U);
}

TEST_F(ForgetTest, forgotten_peer_is_a_stranger_until_both_begin_anew) {
  connect();
  auto pending = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(low().post_receive({2, 1}, 7, 1, pending).is_ok());
  SentLatch sent;
  for (std::uint64_t op = 2; op < 4; ++op) {  // more than the credit: they wait
    ASSERT_TRUE(low().send(chunk_of({2, op}, pattern(16 * kMiB, 1), 0, 1), sent.callback()).is_ok());
  }
  pair_->low->forget(pair_->high->id(), kForgotten);
  ASSERT_TRUE(pending->error().has_value());
  EXPECT_EQ(pending->error()->message(), "forgotten");
  EXPECT_EQ(sent.wait(2).size(), 2U);
  EXPECT_EQ(low().send(chunk_of({2, 9}, pattern(8, 1))).code(), StatusCode::Aborted);
  EXPECT_TRUE(pair_->low->channels().empty());

  // The other side hears of it, or dials in vain; it makes no channel here.
  pair_->high->forget(pair_->low->id(), kForgotten);
  connect_high();
  std::this_thread::sleep_for(2 * kShortDeadline);
  EXPECT_TRUE(high().status().is_ok()) << high().status().to_string();
  EXPECT_TRUE(pair_->low->channels().empty());
  connect_low();
  expect_ready();
  expect_transfers();
  EXPECT_TRUE(pair_->high->shutdown(patience()).is_ok());
  EXPECT_TRUE(pair_->low->shutdown(patience()).is_ok());
}

TEST_F(ForgetTest, all_but_those_that_are_kept_and_have_not_failed_are_forgotten) {
  connect();
  PeerAddress to_third = address_of(*third_, "third");
  PeerAddress from_third = address_of(*pair_->low, "low");
  to_third.verdict_from_above = from_third.verdict_from_above = true;
  const auto beside = *pair_->low->connect(to_third, token(1));
  const auto beside_too = *third_->connect(from_third, token(1));
  ASSERT_TRUE(beside->wait_ready(patience()).is_ok());
  const std::set<ProcessId> kept{third_->id()};
  pair_->low->forget_others(kept, kForgotten);
  EXPECT_EQ(low().status().code(), StatusCode::Aborted);
  ASSERT_EQ(pair_->low->channels().size(), 1U);
  expect_transfer(*beside, *beside_too, 1, kMiB);
  third_->forget(pair_->low->id(), kForgotten);
  // What it said of that may be lost with the connections that it resets; a new channel says so, too.
  const auto anew = *third_->connect(from_third, token(1));
  for (const Deadline end = patience(); beside->status().is_ok() && !end.expired();) {
    std::this_thread::sleep_for(10ms);
  }
  pair_->low->forget_others(kept, kForgotten);
  EXPECT_TRUE(pair_->low->channels().empty());
}

// The one that was not told goes on with what is not there any more.
TEST_F(ForgetTest, new_channel_does_not_go_on_with_an_old_one_of_the_peer) {
  for (const bool low_forgets : {true, false}) {
    connect();
    expect_transfers();
    proxy_->listen(false);
    proxy_->reset_all();
    Endpoint& forgets = low_forgets ? *pair_->low : *pair_->high;
    forgets.forget(low_forgets ? pair_->high->id() : pair_->low->id(), kForgotten);
    low_forgets ? connect_low() : connect_high();
    proxy_->listen(true);
    Channel& old = low_forgets ? high() : low();
    for (const Deadline end = patience(); old.status().is_ok() && !end.expired();) {
      std::this_thread::sleep_for(10ms);
    }
    EXPECT_EQ(old.status().code(), StatusCode::PeerLost) << old.status().to_string();
    Endpoint& other = low_forgets ? *pair_->high : *pair_->low;
    other.forget(forgets.id(), kForgotten);
    low_forgets ? connect_high() : connect_low();
    expect_ready();
    expect_transfers();
    pair_->low->forget(pair_->high->id(), kForgotten);
    pair_->high->forget(pair_->low->id(), kForgotten);
  }
}

// The last Welcome is lost with its connection, so that only one side has ever had all connections.
TEST_F(ForgetTest, channel_that_was_complete_at_one_side_does_not_go_on_with_a_new_one) {
  proxy_->delay(60ms);
  connect_low();
  ASSERT_TRUE(low().post_receive({2, 1}, 7, 1, std::make_shared<CollectingSink>(1)).is_ok());
  connect_high();
  ASSERT_TRUE(low().wait_ready(patience()).is_ok()) << low().status().to_string();
  proxy_->listen(false);
  proxy_->reset_one(2);
  std::this_thread::sleep_for(kShortDeadline);  // what low has to say comes
  proxy_->reset_all();
  pair_->low->forget(pair_->high->id(), kForgotten);
  connect_low();
  proxy_->listen(true);
  for (const Deadline end = patience(); high().status().is_ok() && !end.expired();) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(high().status().code(), StatusCode::PeerLost) << high().status().to_string();
  pair_->high->forget(pair_->low->id(), kForgotten);
  connect_high();
  expect_ready();
  expect_transfers();
}

}  // namespace
}  // namespace geocomm::transport::testing
