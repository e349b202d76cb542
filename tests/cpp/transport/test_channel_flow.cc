// Credit, order, cancelling, mismatches: what a channel does when its users do not run in step.
#include <algorithm>
#include <thread>

#include "raw_peer.h"
#include "transport/wire/wire.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

EndpointOptions with_unexpected(std::size_t bytes) {
  EndpointOptions options;
  options.max_unexpected_bytes = bytes;
  return options;
}

void send_op(Channel& channel, std::uint64_t op, std::uint32_t chunks, std::size_t chunk_bytes,
             SentLatch* sent = nullptr) {
  const auto data = pattern(chunk_bytes, op);
  for (std::uint32_t i = 0; i < chunks; ++i) {
    ASSERT_TRUE(channel.send(chunk_of({1, op}, data, i, chunks), sent ? sent->callback() : nullptr).is_ok());
  }
}

TEST(ChannelFlow, test_unposted_operation_does_not_hold_up_a_posted_one) {
  Pair pair;  // 64 MiB of credit
  pair.connect();
  send_op(*pair.high_channel, 1, 200, kMiB);
  auto posted = std::make_shared<CollectingSink>(4);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 2}, 7, 4, posted).is_ok());
  send_op(*pair.high_channel, 2, 4, kMiB);
  ASSERT_TRUE(posted->wait().is_ok());
  const std::uint64_t received = pair.low_channel->stats().payload_received;
  EXPECT_LE(received, (64 + 4) * kMiB);
  EXPECT_GT(received, 4 * kMiB);
  auto late = std::make_shared<CollectingSink>(200);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 200, late).is_ok());
  ASSERT_TRUE(late->wait().is_ok());
  const auto data = pattern(kMiB, 1);
  for (std::uint32_t i = 0; i < 200; ++i) ASSERT_EQ(late->data(i), data) << i;
}

TEST(ChannelFlow, test_chunk_larger_than_the_credit_waits_for_its_post) {
  Pair pair(with_unexpected(kMiB));
  pair.connect();
  send_op(*pair.high_channel, 1, 2, 4 * kMiB);
  auto sink = std::make_shared<CollectingSink>(2);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 2, sink).is_ok());
  ASSERT_TRUE(sink->wait().is_ok());
}

TEST(ChannelFlow, test_chunk_count_mismatch_is_told_to_the_sink) {
  Pair pair;
  pair.connect();
  auto sink = std::make_shared<CollectingSink>(3);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 3, sink).is_ok());
  send_op(*pair.high_channel, 1, 2, 100);
  EXPECT_EQ(sink->wait().code(), StatusCode::InvalidArgument);
}

TEST(ChannelFlow, test_posting_a_key_twice_is_invalid) {
  Pair pair;
  pair.connect();
  auto first = std::make_shared<CollectingSink>(1);
  auto second = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 1}, 7, 1, first).is_ok());
  EXPECT_EQ(pair.low_channel->post_receive({1, 1}, 7, 1, second).code(), StatusCode::InvalidArgument);
  send_op(*pair.high_channel, 1, 1, 10);
  EXPECT_TRUE(first->wait().is_ok());
  EXPECT_EQ(second->count(), 0U);
}

TEST(ChannelFlow, test_bad_arguments_are_refused) {
  Pair pair;
  pair.connect();
  Channel& channel = *pair.high_channel;
  EXPECT_EQ(channel.send(chunk_of({1, 1}, {}, 1, 1)).code(), StatusCode::InvalidArgument);
  EXPECT_EQ(channel.send(chunk_of({1, 1}, {}, 0, 0)).code(), StatusCode::InvalidArgument);
  EXPECT_EQ(channel.send(chunk_of({1, 1}, pattern(16 * kMiB + 1, 1))).code(), StatusCode::InvalidArgument);
  EXPECT_EQ(channel.post_receive({1, 1}, 7, 1, nullptr).code(), StatusCode::InvalidArgument);
  EXPECT_EQ(channel.post_receive({1, 1}, 7, 0, std::make_shared<CollectingSink>(0)).code(),
            StatusCode::InvalidArgument);
  ASSERT_TRUE(channel.send(chunk_of({1, 2}, {}, 0, 2, 7)).is_ok());
  EXPECT_EQ(channel.send(chunk_of({1, 2}, {}, 1, 2, 8)).code(), StatusCode::InvalidArgument);
}

TEST(ChannelFlow, test_cancel_takes_back_what_is_queued) {
  Pair pair(with_unexpected(kMiB));
  pair.connect();
  SentLatch sent;
  send_op(*pair.high_channel, 1, 10, kMiB, &sent);
  pair.high_channel->cancel({1, 1});
  const auto results = sent.wait(10);
  ASSERT_EQ(results.size(), 10U);
  EXPECT_GE(std::count_if(results.begin(), results.end(),
                          [](const Status& status) { return status.code() == StatusCode::Aborted; }),
            9);
  // Credit is free for others once the peer has let go of what it had.
  pair.low_channel->cancel({1, 1});
  auto sink = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.low_channel->post_receive({1, 2}, 7, 1, sink).is_ok());
  send_op(*pair.high_channel, 2, 1, kMiB);
  EXPECT_TRUE(sink->wait().is_ok());
}

TEST(ChannelFlow, test_close_group_drops_queued_chunks) {
  Pair pair(with_unexpected(kMiB));
  pair.connect();
  SentLatch sent;
  send_op(*pair.high_channel, 1, 10, kMiB, &sent);
  pair.high->close_group(1, {StatusCode::Aborted, "group destroyed"}, QueuedChunks::Drop);
  EXPECT_EQ(sent.wait(10).size(), 10U);
}

TEST(ChannelFlow, test_sink_may_send_from_its_callback) {
  class Echo : public CollectingSink {
   public:
    Echo(Channel& channel, OpKey reply) : CollectingSink(1), channel_(channel), reply_(reply) {}
    void on_chunk(std::uint32_t chunk) override {
      CollectingSink::on_chunk(chunk);
      EXPECT_TRUE(channel_.send(chunk_of(reply_, data())).is_ok());
    }

   private:
    Channel& channel_;
    OpKey reply_;
  };
  Pair pair;
  pair.connect();
  auto back = std::make_shared<CollectingSink>(1);
  ASSERT_TRUE(pair.high_channel->post_receive({1, 2}, 7, 1, back).is_ok());
  ASSERT_TRUE(
      pair.low_channel->post_receive({1, 1}, 7, 1, std::make_shared<Echo>(*pair.low_channel, OpKey{1, 2}))
          .is_ok());
  send_op(*pair.high_channel, 1, 1, kMiB);
  ASSERT_TRUE(back->wait().is_ok());
  EXPECT_EQ(back->data(), pattern(kMiB, 1));
}

// Longer than the five milliseconds that an acknowledgement waits for others.
class SlowSink : public CollectingSink {
 public:
  using CollectingSink::CollectingSink;
  void on_chunk(std::uint32_t chunk) override {
    std::this_thread::sleep_for(20ms);
    CollectingSink::on_chunk(chunk);
  }
};

TEST(ChannelFlow, test_acknowledgement_of_a_slow_sink_waits_for_no_heartbeat) {
  if (over_rdma()) GTEST_SKIP() << "counts TCP's bytes";
  constexpr std::uint64_t kOps = 4;
  Pair pair;
  pair.connect();
  for (std::uint64_t op = 1; op <= kOps; ++op) {
    ASSERT_TRUE(pair.low_channel->post_receive({1, op}, 7, 1, std::make_shared<SlowSink>(1)).is_ok());
  }
  expect_transfer(*pair.high_channel, *pair.low_channel, 100, 1000);
  int alone = 0;
  for (std::uint64_t op = 1; op <= kOps; ++op) {
    std::this_thread::sleep_for(20ms);  // for what is under way
    const ChannelStats before = pair.high_channel->stats();
    send_op(*pair.high_channel, op, 1, 1000);
    while (pair.high_channel->stats().acks == before.acks) std::this_thread::sleep_for(1ms);
    if (pair.high_channel->stats().bytes_received == before.bytes_received + kHeaderBytes) ++alone;
  }
  EXPECT_GT(alone, 0);  // a heartbeat comes just before what waits for it
}

TEST(ChannelFlow, test_posts_and_cancels_race_with_arrivals) {
  Pair pair(with_unexpected(8 * kMiB));
  pair.connect();
  constexpr std::uint64_t kOps = 200;
  std::thread sender([&] {
    for (std::uint64_t op = 0; op < kOps; ++op) {
      send_op(*pair.high_channel, op, 4, 30'000 + op * 100);
    }
  });
  std::vector<std::shared_ptr<CollectingSink>> kept;
  for (std::uint64_t op = 0; op < kOps; ++op) {
    auto sink = std::make_shared<CollectingSink>(4);
    ASSERT_TRUE(pair.low_channel->post_receive({1, op}, 7, 4, sink).is_ok());
    if (op % 3 == 0) {
      pair.low_channel->cancel({1, op});
    } else {
      kept.push_back(sink);
    }
  }
  for (const auto& sink : kept) EXPECT_TRUE(sink->wait().is_ok());
  sender.join();
}

}  // namespace
}  // namespace geocomm::transport::testing
