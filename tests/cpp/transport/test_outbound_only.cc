// A process that nobody can dial: it dials, whoever its peers are.
#include <gtest/gtest.h>

#include "fault_proxy.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

EndpointOptions outbound_only() {
  EndpointOptions options;
  options.outbound_only = true;
  return options;
}

// What others know of it.
PeerAddress without_address(const Endpoint& endpoint) {
  PeerAddress address = address_of(endpoint, "rank 1 (high)");
  address.host.clear();
  address.port = 0;
  return address;
}

TEST(OutboundOnly, test_it_dials_every_peer) {
  for (int i = 0; i < 20; ++i) {
    Pair pair({}, outbound_only());
    pair.low_channel = *pair.low->connect(without_address(*pair.high), token(1));
    pair.high_channel = *pair.high->connect(address_of(*pair.low, "rank 0 (low)"), token(1));
    expect_transfer(*pair.low_channel, *pair.high_channel, 1, 300'000);
    expect_transfer(*pair.high_channel, *pair.low_channel, 2, 300'000);
  }
}

TEST(OutboundOnly, test_two_of_one_site_reach_each_other) {
  Pair pair(outbound_only(), outbound_only());
  pair.connect();
  expect_transfer(*pair.low_channel, *pair.high_channel, 1, 1000);
}

TEST(OutboundOnly, test_lost_connections_are_made_again) {
  Pair pair({}, outbound_only());
  FaultProxy proxy(pair.low->port());
  PeerAddress through = address_of(*pair.low, "rank 0 (low)");
  through.port = proxy.port();
  pair.low_channel = *pair.low->connect(without_address(*pair.high), token(1));
  pair.high_channel = *pair.high->connect(through, token(1));
  for (std::uint64_t round = 0; round < 5; ++round) {
    expect_transfer(*pair.low_channel, *pair.high_channel, 2 * round, 500'000, 4);
    proxy.reset_all();
    expect_transfer(*pair.high_channel, *pair.low_channel, 2 * round + 1, 500'000, 4);
  }
  EXPECT_GT(pair.low_channel->stats().resumes, 0U);
  // Nothing breaks a connection any more, so that in the end all are there.
  const auto end = Deadline::after(20s);
  while (pair.low_channel->stats().outages == 0 && !end.expired()) std::this_thread::sleep_for(1ms);
  EXPECT_GT(pair.low_channel->stats().outages, 0U);
  EXPECT_GT(pair.low_channel->stats().outage_us, 0U);
  pair.high.reset();  // before the proxy
  pair.low.reset();
}

TEST(OutboundOnly, test_one_that_ends_is_lost_at_the_link_deadline) {
  EndpointOptions patient;
  patient.link_deadline = std::chrono::seconds(2);
  Pair pair(patient, outbound_only());
  pair.low_channel = *pair.low->connect(without_address(*pair.high), token(1));
  pair.high_channel = *pair.high->connect(address_of(*pair.low, "rank 0 (low)"), token(1));
  expect_transfer(*pair.low_channel, *pair.high_channel, 1, 1000);
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 2}, 7, 1, sink).is_ok());
  pair.high->abort(Status(StatusCode::Aborted, "killed"));
  EXPECT_FALSE(sink->wait().is_ok());
}

}  // namespace
}  // namespace geocomm::transport::testing
