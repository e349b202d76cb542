// Orderly ends lose nothing, and none takes longer than its deadline.
#include <future>
#include <thread>

#include "logged_warnings.h"
#include "raw_peer.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

TEST(EndpointShutdown, test_shutdown_delivers_everything_that_was_queued) {
  Pair pair;
  pair.connect();
  constexpr std::uint32_t kChunks = 60;
  auto sink = std::make_shared<CollectingSink>(kChunks);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, kChunks, sink).is_ok());
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, pattern(kMiB, i), i, kChunks)).is_ok());
  }
  EXPECT_TRUE(pair.high->shutdown(patience()).is_ok());
  ASSERT_TRUE(sink->wait().is_ok());
  for (std::uint32_t i = 0; i < kChunks; ++i) EXPECT_EQ(sink->data(i), pattern(kMiB, i));
}

TEST(EndpointShutdown, test_both_shutting_down_at_once_deliver_everything) {
  for (int round = 0; round < 10; ++round) {
    Pair pair;
    pair.connect();
    auto low_sink = std::make_shared<CollectingSink>(8);
    auto high_sink = std::make_shared<CollectingSink>(8);
    ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 8, low_sink).is_ok());
    ASSERT_TRUE(pair.high_channel->post_receive({1, 1}, 7, 8, high_sink).is_ok());
    for (std::uint32_t i = 0; i < 8; ++i) {
      ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, pattern(kMiB, i), i, 8)).is_ok());
      ASSERT_TRUE(pair.low_channel->send(chunk_of({1, 1}, pattern(kMiB, i), i, 8)).is_ok());
    }
    std::thread other([&] { EXPECT_TRUE(pair.low->shutdown(patience()).is_ok()); });
    EXPECT_TRUE(pair.high->shutdown(patience()).is_ok());
    other.join();
    EXPECT_TRUE(low_sink->wait().is_ok());
    EXPECT_TRUE(high_sink->wait().is_ok());
  }
}

TEST(EndpointShutdown, test_shutdown_sends_what_was_queued_before_connecting) {
  Pair pair;
  pair.connect(/*wait=*/false);
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 1, sink).is_ok());
  ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, pattern(kMiB, 1))).is_ok());
  EXPECT_TRUE(pair.high->shutdown(patience()).is_ok());
  EXPECT_TRUE(sink->wait().is_ok()) << sink->wait().to_string();
}

TEST(EndpointShutdown, test_peer_that_left_is_named_in_what_follows) {
  Pair pair;
  pair.connect();
  auto pending = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 1, pending).is_ok());
  EXPECT_TRUE(pair.high->shutdown(patience()).is_ok());
  EXPECT_EQ(pending->wait().code(), StatusCode::PeerLost);
  const Status sent = pair.low_channel->send(chunk_of({1, 2}, {}));
  EXPECT_EQ(sent.code(), StatusCode::PeerLost);
  EXPECT_EQ(sent.peer(), "rank 1 (high)");
  auto late = std::make_shared<CollectingSink>(1);
  EXPECT_EQ(pair.low_channel->post_receive({1, 2}, 7, 1, late).code(), StatusCode::PeerLost);
  EXPECT_EQ(late->wait().code(), StatusCode::PeerLost);
  EXPECT_EQ(pair.low_channel->wait_ready(patience()).code(), StatusCode::PeerLost);
}

TEST(EndpointShutdown, test_data_that_came_before_the_peer_left_can_still_be_received) {
  Pair pair;
  pair.connect();
  const auto data = pattern(3 * kMiB, 1);
  ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, data, 0, 2)).is_ok());
  ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, {}, 1, 2)).is_ok());
  EXPECT_TRUE(pair.high->shutdown(patience()).is_ok());
  auto sink = std::make_shared<CollectingSink>(2);
  EXPECT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 2, sink).is_ok());
  ASSERT_TRUE(sink->wait().is_ok());
  EXPECT_EQ(sink->data(0), data);
}

TEST(EndpointShutdown, test_unposted_data_beyond_the_credit_is_waited_for_until_the_deadline) {
  EndpointOptions options;
  options.max_unexpected_bytes = kMiB;
  Pair pair(options);
  pair.connect();
  SentLatch sent;
  for (std::uint64_t op = 0; op < 4; ++op) {
    ASSERT_TRUE(pair.high_channel->send(chunk_of({1, op}, pattern(kMiB, op)), sent.callback()).is_ok());
  }
  EXPECT_EQ(pair.high->shutdown(Deadline::after(100ms)).code(), StatusCode::Timeout);
  EXPECT_EQ(sent.wait(4).size(), 4U);
}

// It waits for channels that cannot send everything, and for none that is forgotten meanwhile, or was before.
TEST(EndpointShutdown, test_shutdown_does_not_wait_for_channels_that_are_forgotten_meanwhile) {
  EndpointOptions options;
  options.max_unexpected_bytes = kMiB;
  const auto leaving = make_endpoint(options);
  std::vector<std::unique_ptr<Endpoint>> peers;
  std::vector<std::shared_ptr<Channel>> channels;
  for (int i = 0; i < 3; ++i) {
    peers.push_back(make_endpoint(options));
    (void)*peers[i]->connect(address_of(*leaving, "leaving"), token(1));
    channels.push_back(*leaving->connect(address_of(*peers[i], "peer"), token(1)));
    const Status ready = channels[i]->wait_ready(patience());
    ASSERT_TRUE(ready.is_ok()) << ready.to_string();
    for (std::uint64_t op = 0; op < 4; ++op) {
      ASSERT_TRUE(channels[i]->send(chunk_of({1, op}, pattern(kMiB, op))).is_ok());
    }
  }
  const Status forgotten(StatusCode::Aborted, "forgotten");
  leaving->forget(peers[0]->id(), forgotten);
  auto shut =
      std::async(std::launch::async, [&] { return leaving->shutdown(Deadline::after(2 * kPatience)); });
  // Begun: it refuses what is new.
  for (const Deadline end = patience(); channels[1]->status().is_ok() && !end.expired();) {
    std::this_thread::sleep_for(1ms);
  }
  leaving->forget(peers[1]->id(), forgotten);
  EXPECT_EQ(shut.wait_for(100ms), std::future_status::timeout) << "a channel is left that has not sent all";
  leaving->forget(peers[2]->id(), forgotten);
  EXPECT_EQ(shut.wait_for(kPatience), std::future_status::ready);
  const Status status = shut.get();
  EXPECT_TRUE(status.is_ok()) << status.to_string();
}

// What ended by itself counts once, also if it is forgotten then.
TEST(EndpointShutdown, test_shutdown_waits_for_the_others_when_a_channel_that_failed_is_forgotten) {
  Pair pair;
  const auto third = make_endpoint();
  pair.connect();
  const auto beside = *pair.low->connect(address_of(*third, "third"), token(1));
  (void)*third->connect(address_of(*pair.low, "low"), token(1));
  ASSERT_TRUE(beside->wait_ready(patience()).is_ok());
  third->abort({StatusCode::Aborted, "over"});
  for (const Deadline end = patience(); beside->status().is_ok() && !end.expired();) {
    std::this_thread::sleep_for(1ms);
  }
  pair.low->forget(third->id(), {StatusCode::Aborted, "forgotten"});
  constexpr std::uint32_t kChunks = 60;
  auto sink = std::make_shared<CollectingSink>(kChunks);
  ASSERT_TRUE(pair.high_channel->post_receive({1, 1}, 7, kChunks, sink).is_ok());
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    ASSERT_TRUE(pair.low_channel->send(chunk_of({1, 1}, pattern(kMiB, i), i, kChunks)).is_ok());
  }
  EXPECT_TRUE(pair.low->shutdown(patience()).is_ok());
  EXPECT_TRUE(sink->wait().is_ok());
}

TEST(EndpointShutdown, test_late_data_of_an_ended_group_does_not_spoil_an_orderly_end) {
  LoggedWarnings warnings;
  for (int round = 0; round < 10; ++round) {
    Pair pair;
    pair.connect();
    pair.low->close_group(1, {StatusCode::Aborted, "the group has ended"}, QueuedChunks::Send);
    for (std::uint64_t op = 0; op < 40; ++op) {
      ASSERT_TRUE(pair.high_channel->send(chunk_of({1, op}, pattern(kMiB, op))).is_ok());
    }
    std::thread other([&] { EXPECT_TRUE(pair.low->shutdown(patience()).is_ok()); });
    EXPECT_TRUE(pair.high->shutdown(patience()).is_ok());
    other.join();
  }
  EXPECT_EQ(warnings.text(), "");
}

TEST(EndpointShutdown, test_second_shutdown_and_later_calls_are_harmless) {
  Pair pair;
  pair.connect();
  EXPECT_TRUE(pair.high->shutdown(patience()).is_ok());
  EXPECT_TRUE(pair.high->shutdown(patience()).is_ok());
  EXPECT_EQ(pair.high->connect(address_of(*pair.low, "low"), token(1)).status().code(), StatusCode::Aborted);
  EXPECT_EQ(pair.high_channel->send(chunk_of({1, 1}, {})).code(), StatusCode::Aborted);
  auto sink = std::make_shared<CollectingSink>(1);
  EXPECT_FALSE(pair.high_channel->post_receive({1, 1}, 7, 1, sink).is_ok());
  EXPECT_FALSE(sink->wait().is_ok());
  pair.high_channel->cancel({1, 1});
  pair.high->close_group(1, {StatusCode::Aborted, "closed"}, QueuedChunks::Drop);
  pair.high->abort({StatusCode::Aborted, "aborted"});
  pair.high.reset();
  // A channel may outlive its endpoint.
  EXPECT_EQ(pair.high_channel->status().code(), StatusCode::Aborted);
  EXPECT_EQ(pair.high_channel->send(chunk_of({1, 1}, {})).code(), StatusCode::Aborted);
  EXPECT_GT(pair.high_channel->stats().bytes_sent, 0U);
}

TEST(EndpointShutdown, test_shutdown_of_never_connected_channels_does_not_wait) {
  auto endpoint = make_endpoint();
  const auto waiting = *endpoint->connect({id_of(0xFF), "127.0.0.1", 1, "rank 1"}, token(1));
  const auto dialing = *endpoint->connect({id_of(0), "127.0.0.1", 1, "rank 2"}, token(1));
  EXPECT_TRUE(endpoint->shutdown(patience()).is_ok());
  EXPECT_EQ(waiting->wait_ready(patience()).code(), StatusCode::Aborted);
  EXPECT_EQ(dialing->wait_ready(patience()).code(), StatusCode::Aborted);
}

TEST(EndpointShutdown, test_peer_that_ignores_close_costs_only_the_deadline) {
  auto endpoint = make_endpoint();
  endpoint->allow(token(1));
  RawPeer raw(*endpoint, token(1));
  EXPECT_EQ(endpoint->shutdown(Deadline::after(100ms)).code(), StatusCode::Timeout);
  EXPECT_TRUE(raw.data.closed_by_peer());
}

// Say, of an operation whose memory is Python's, whose lock another thread has.
TEST(EndpointShutdown, test_callback_that_does_not_return_costs_only_the_deadline) {
  class StuckSink : public CollectingSink {
   public:
    StuckSink() : CollectingSink(1) {}
    void on_chunk(std::uint32_t chunk) override {
      entered.set_value();
      release.get_future().wait();
      CollectingSink::on_chunk(chunk);
    }
    std::promise<void> entered;
    std::promise<void> release;
  };
  Pair pair;
  pair.connect();
  auto sink = std::make_shared<StuckSink>();
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 1, sink).is_ok());
  ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 1}, pattern(64, 1))).is_ok());
  sink->entered.get_future().wait();
  EXPECT_EQ(pair.low->shutdown(Deadline::after(50ms)).code(), StatusCode::Timeout);
  EXPECT_FALSE(pair.low->is_over());
  pair.low->abort({StatusCode::Aborted, "enough"});
  sink->release.set_value();
  pair.low.reset();  // waits for the IO thread
  EXPECT_EQ(sink->count(), 1U);
}

TEST(EndpointShutdown, test_abort_ends_pending_operations_with_its_reason) {
  Pair pair;
  pair.connect();
  auto own = std::make_shared<CollectingSink>(1);
  auto others = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.high_channel->post_receive({1, 1}, 7, 1, own).is_ok());
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 1, others).is_ok());
  SentLatch sent;
  for (std::uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(pair.high_channel->send(chunk_of({1, 2}, pattern(kMiB, 1), i, 100), sent.callback()).is_ok());
  }
  pair.high->abort({StatusCode::Internal, "the user gave up"});
  EXPECT_EQ(own->wait().code(), StatusCode::Internal);
  EXPECT_EQ(sent.wait(100).size(), 100U);
  EXPECT_EQ(others->wait().code(), StatusCode::PeerLost);
  EXPECT_EQ(pair.low_channel->status().peer(), "rank 1 (high)");
  EXPECT_EQ(pair.high->connect(address_of(*pair.low, "low"), token(1)).status().code(), StatusCode::Internal);
}

TEST(EndpointShutdown, test_connection_cut_without_close_by_a_peer_that_is_gone_is_a_lost_peer) {
  EndpointOptions options;
  options.link_deadline = 1s;  // refusals are believed after 5 s, or after this
  auto endpoint = make_endpoint(options);
  const auto channel = *endpoint->connect({id_of(0xFF), "127.0.0.1", 1, "rank 1"}, token(1));
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(channel->post_receive({1, 1}, 7, 1, sink).is_ok());
  {
    RawPeer raw(*endpoint, token(1));
    ASSERT_TRUE(channel->wait_ready(patience()).is_ok());
    ASSERT_TRUE(raw.data.send(segment_header(1, 100)));  // dies in the middle of a segment
  }
  EXPECT_EQ(sink->wait().code(), StatusCode::PeerLost);
  EXPECT_EQ(channel->status().peer(), "rank 1");
}

}  // namespace
}  // namespace geocomm::transport::testing
